"""`--devices`: names, the variables of the workers, and which devices may share a build."""

from __future__ import annotations

import pytest
import torch
from sample_tables import make_runtime

from warmup.core.errors import SettingsError
from warmup.tuning.device_host import GPU_LANES, parse_devices
from warmup.tuning.devices import check_one_kind, devices_off


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host with four GPUs, none of which is hidden."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("gpus")
def test_all_are_the_gpus_of_the_host() -> None:
    slots = parse_devices("all")
    assert [slot.name for slot in slots] == [f"cuda:{index}" for index in range(4)]
    assert {slot.lanes for slot in slots} == {GPU_LANES}


@pytest.mark.usefixtures("gpus")
def test_a_worker_sees_its_gpu_alone() -> None:
    (_, slot) = parse_devices("cuda:0, cuda:3")
    assert (slot.inside, slot.environment) == ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3"})


def test_names_count_the_visible_gpus(gpus: pytest.MonkeyPatch) -> None:
    """Where the build sees some GPUs only, names are those that it sees, as everywhere in torch."""
    gpus.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab12,7,6")
    assert parse_devices("cuda:1")[0].environment == {"CUDA_VISIBLE_DEVICES": "GPU-ab12"}


def test_a_cpu_may_be_named_several_times() -> None:
    """Its workers are lanes of one device, and take turns on it."""
    (slot,) = parse_devices("cpu,cpu,cpu")
    assert (slot.name, slot.lanes, slot.environment) == ("cpu", 3, {})


@pytest.mark.usefixtures("gpus")
def test_other_names_are_refused() -> None:
    """A device that is not here, named twice or spelled otherwise is an error that quotes it."""
    for text, said in (
        ("cuda:0,cuda:0", "has cuda:0 twice"),
        ("cuda:0,cuda:4", "4 GPUs here, and cuda:4 is not one"),
        ("cuda", "'cuda' is not a device"),
        ("", "'' is not a device"),
        ("all,cuda:0", "'all' is not a device"),
    ):
        with pytest.raises(SettingsError, match=said):
            parse_devices(text)


def test_all_without_a_gpu_is_an_error(gpus: pytest.MonkeyPatch) -> None:
    """`all` means GPUs: a host without one says so, instead of building on its CPU."""
    gpus.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingsError, match="there is no GPU here"):
        parse_devices("all")


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


def test_kinds_of_devices_are_not_mixed() -> None:
    """A build on GPUs of two kinds is refused, and the error names both."""
    other = make_runtime(name="NVIDIA H100", memory_gib=80)
    with pytest.raises(SettingsError) as refused:
        check_one_kind({"cuda:0": make_runtime(), "cuda:1": other})
    said = "cuda:0 is NVIDIA H200 with 132 SMs and 140 GiB, cuda:1 is NVIDIA H100 with 132 SMs and"
    assert said in str(refused.value)
    # A MIG slice beside a whole GPU of the same name is refused.
    with pytest.raises(SettingsError, match="mixes kinds"):
        check_one_kind({"cuda:0": make_runtime(), "cuda:1": make_runtime(mig="1g.18gb")})
    # Devices of one kind pass.
    check_one_kind({"cuda:0": make_runtime(), "cuda:1": make_runtime()})
