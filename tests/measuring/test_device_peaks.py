"""The cache file of measured peaks; the measurement itself is replaced, since there is no GPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from warmup.core.roofline import Peaks, PeaksJson
from warmup.measuring import machine as device_peaks
from warmup.measuring.machine import measure_peaks, measured_peaks

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PEAKS = Peaks(
    tflops={"bf16": 801.5, "f32": 51.0}, gbps=4123.5, clock_mhz=1980, measured="2026-01-02"
)
OTHER = replace(PEAKS, gbps=3350.0)
FORMAT = 6


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices passed to the replaced measurement, which returns ``PEAKS``."""
    found: list[torch.device] = []

    def measure(device: torch.device) -> Peaks:
        found.append(device)
        return PEAKS

    properties = SimpleNamespace(name="NVIDIA H200 / NVL", uuid="aaaa-bbbb")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(device_peaks, "measure_peaks", measure)
    return found


def test_peaks_are_measured_once_for_a_device_and_a_torch(
    measured: list[torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process reads the file of the first; those of a CPU are for its threads too."""
    other = SimpleNamespace(name="NVIDIA H200 / NVL", uuid="cccc-dddd")
    for case, (device, owner, name, value) in {
        "gpu": (CUDA, None, "", None),
        "cpu": (CPU, None, "", None),
        "other gpu": (CUDA, torch.cuda, "get_device_properties", lambda _device: other),
        "other threads": (CPU, torch, "get_num_threads", lambda: 77),
        "other torch": (CUDA, torch, "__version__", "99.1.0+test"),
    }.items():
        if owner is not None:
            monkeypatch.setattr(owner, name, value)
        measured.clear()
        for _ in range(2):
            assert measured_peaks(device, tmp_path / "new") == PEAKS, case
        assert measured == [device], case
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert len(names) == 5
    assert any(name.startswith("nvidia-h200-nvl-aaaa-bbbb-torch") for name in names)


def changed(**changes: Any) -> str:
    """Return the text of a file of *changes* to the rates of another device."""
    peaks = {**msgspec.to_builtins(PeaksJson.of(OTHER)), **changes}
    return json.dumps({"format": peaks.pop("format", FORMAT), "peaks": peaks})


def test_a_file_that_cannot_be_used_is_written_anew(
    measured: list[torch.device], tmp_path: Path
) -> None:
    """The peaks are measured again, and the next process reads them; a sound file is read."""
    measured_peaks(CUDA, tmp_path)
    (path,) = tmp_path.iterdir()
    for text in (
        *("", "{", changed()[:-9], "[1]", "[" * 16000, changed() + " " * 20000),
        *(changed(format=FORMAT - 1), changed(tflops=None), changed(tflops=[800])),
        *(changed(gbps="fast"), changed(gbps=0), changed(tflops={"bf16": -1})),
        *(changed(gbps=1e12), changed(gbps=math.inf), changed(tflops={"bf16": math.nan})),
        *(changed(clock_mhz="x"), changed(watts=700)),
        json.dumps({"format": FORMAT, "peaks": {"tflops": {}, "gbps": 1.0}}),
    ):
        measured.clear()
        path.write_text(text)
        assert [measured_peaks(CUDA, tmp_path) for _ in range(2)] == [PEAKS, PEAKS], text[:80]
        assert len(measured) == 1, text[:80]
    path.write_text(changed())
    assert (measured_peaks(CUDA, tmp_path), len(measured)) == (OTHER, 1)


def test_what_cannot_be_written_is_no_error(
    measured: list[torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in place of the folder stays, and a full disk leaves no part of a file."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert measured_peaks(CUDA, blocked / "peaks") == PEAKS
    monkeypatch.setattr("os.fsync", full)
    assert measured_peaks(CUDA, tmp_path) == PEAKS
    assert (list(tmp_path.iterdir()), blocked.read_text()) == ([blocked], "in the way")


def test_a_real_cpu_has_rates_above_zero() -> None:
    """Measured for real: f32 products and copies, and no clock."""
    peaks = measure_peaks(CPU)
    assert min(peaks.tflops["f32"], peaks.gbps) > 0
    assert (peaks.clock_mhz, dict(peaks.clocks)) == (None, {})


def test_integers_have_the_peak_of_8_bit_floats_where_the_device_multiplies_both_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's products of integers are no bound for Triton's on an H100 (rates from one)."""
    rates = {"bf16": (801.0, 1700), "i8": (989.0, 1980), "f8_e4m3fn": (1556.0, 1755)}

    def best(name: str, _device: torch.device) -> tuple[float, str] | None:
        return (rates[name][0], name) if name in rates else None

    monkeypatch.setattr(device_peaks, "_best_matmul", best)
    monkeypatch.setattr(device_peaks, "_clock_under", lambda name, _device: rates[name][1])
    monkeypatch.setattr(device_peaks, "_memory_gbps", lambda _device: 3000.0)
    monkeypatch.setattr(device_peaks, "sm_clock_mhz", lambda _device: 1980)
    for capability, tflops, clock in (((9, 0), 1556.0, 1755), ((10, 3), 989.0, 1980)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _d, c=capability: c)
        peaks = measure_peaks(CUDA)
        assert (peaks.tflops["i8"], peaks.clocks["i8"]) == (tflops, clock), capability
        assert (peaks.tflops["f8_e4m3fn"], peaks.tflops["bf16"]) == (1556.0, 801.0)
