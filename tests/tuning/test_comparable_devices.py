"""Which devices may share a build."""

from __future__ import annotations

import pytest
from sample_tables import make_runtime

from warmup.core.errors import SettingsError
from warmup.tuning.devices.build import check_one_kind, devices_off


def test_a_device_outside_of_the_band_is_named() -> None:
    """The one that is 5 % slower than the device in the middle is left out, and no other one."""
    off = devices_off({"cuda:0": 100.0, "cuda:1": 105.0, "cuda:2": 101.0}, 0.03)
    assert off.keys() == {"cuda:1"}
    assert "105.0 us, +4.0% against cuda:2 (101.0 us); at most 3%" in off["cuda:1"]
    # Rows of a device with another clock are not comparable, whichever way it differs.
    assert devices_off({"cuda:0": 80.0, "cuda:1": 100.0, "cuda:2": 101.0}, 0.03).keys() == {
        "cuda:0"
    }
    # With two devices nobody can say which is the odd one; the faster one goes on.
    assert devices_off({"cuda:0": 105.0, "cuda:1": 100.0}, 0.03).keys() == {"cuda:0"}
    # One device, or several within the band of near ties, all take part.
    for times in ({}, {"cuda:0": 100.0}, {"cuda:0": 100.0, "cuda:1": 102.9}):
        assert devices_off(times, 0.03) == {}


def test_kinds_are_not_mixed() -> None:
    """A build on GPUs of two kinds is refused, and the error names both."""
    other = make_runtime(name="NVIDIA H100", memory_gib=80)
    with pytest.raises(SettingsError) as refused:
        check_one_kind({"cuda:0": make_runtime(), "cuda:1": other})
    said = "cuda:0 is NVIDIA H200 with 132 SMs and 140 GiB, cuda:1 is NVIDIA H100 with 132 SMs and"
    assert said in str(refused.value)


def test_a_slice_of_a_gpu_is_another_kind() -> None:
    """A MIG slice beside a whole GPU of the same name is refused."""
    with pytest.raises(SettingsError, match="mixes kinds"):
        check_one_kind({"cuda:0": make_runtime(), "cuda:1": make_runtime(mig="1g.18gb")})
    # Devices of one kind pass.
    check_one_kind({"cuda:0": make_runtime(), "cuda:1": make_runtime()})
