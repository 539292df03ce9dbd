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

CUDA = torch.device("cuda", 0)
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


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_peaks_are_measured_once(measured: list[torch.device], tmp_path: Path) -> None:
    """The second process reads the file of the first, date and clock included."""
    assert measured_peaks(CUDA, tmp_path / "new") == PEAKS
    assert measured_peaks(CUDA, tmp_path / "new") == PEAKS
    assert measured == [CUDA]


def test_a_file_is_for_one_device_and_one_torch(
    measured: list[torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_peaks(CUDA, tmp_path)
    assert only_file(tmp_path).name.startswith("nvidia-h200-nvl-aaaa-bbbb-torch")
    other = SimpleNamespace(name="NVIDIA H200 / NVL", uuid="cccc-dddd")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: other)
    measured_peaks(CUDA, tmp_path)
    monkeypatch.setattr(torch, "__version__", "99.1.0+test")
    measured_peaks(CUDA, tmp_path)
    assert (len(measured), len(list(tmp_path.iterdir()))) == (3, 3)


def changed(**changes: Any) -> str:
    """Return the text of a file of *changes* to the rates of another device."""
    peaks = {**msgspec.to_builtins(PeaksJson.of(OTHER)), **changes}
    return json.dumps({"format": peaks.pop("format", FORMAT), "peaks": peaks})


DAMAGED = {
    "empty": "",
    "not JSON": "{",
    "cut off": changed()[:-9],
    "a list": "[1]",
    "null": "null",
    "other format": changed(format=FORMAT - 1),
    "no rates": changed(tflops=None),
    "rates in a list": changed(tflops=[800]),
    "a word": changed(gbps="fast"),
    "zero": changed(gbps=0),
    "negative": changed(tflops={"bf16": -1}),
    "beyond any device": changed(gbps=1e12),
    "infinite": changed(gbps=math.inf),
    "no number": changed(tflops={"bf16": math.nan}),
    "clock is a word": changed(clock_mhz="x"),
    "clock is infinite": changed(clock_mhz=math.inf),
    "too large": changed() + " " * 20000,
    "too deep": "[" * 16000,
    "member missing": json.dumps({"format": FORMAT, "peaks": {"tflops": {}, "gbps": 1.0}}),
    "unknown member": changed(watts=700),
}


def test_a_sound_file_is_read(measured: list[torch.device], tmp_path: Path) -> None:
    """The file that the cases below damage is one that saves the measurement."""
    measured_peaks(CUDA, tmp_path)
    only_file(tmp_path).write_text(changed())
    assert measured_peaks(CUDA, tmp_path) == OTHER
    assert len(measured) == 1


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_file_that_cannot_be_used_is_written_anew(
    measured: list[torch.device], tmp_path: Path, text: str
) -> None:
    """The peaks are measured again, and the next process reads them."""
    measured_peaks(CUDA, tmp_path)
    path = only_file(tmp_path)
    path.write_text(text)
    assert [measured_peaks(CUDA, tmp_path) for _ in range(2)] == [PEAKS, PEAKS]
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_no_error(
    measured: list[torch.device], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert [measured_peaks(CUDA, blocked / "peaks") for _ in range(2)] == [PEAKS, PEAKS]
    assert (len(measured), blocked.read_text()) == (2, "in the way")


def test_a_full_disk_is_no_error_and_leaves_nothing(
    measured: list[torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peaks are returned, and no partial file is left for the next process."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert measured_peaks(CUDA, tmp_path) == PEAKS
    assert list(tmp_path.iterdir()) == []


def test_the_peaks_of_a_cpu_are_for_its_host_and_threads(
    measured: list[torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert measured_peaks(cpu, tmp_path) == PEAKS
    assert measured_peaks(cpu, tmp_path) == PEAKS
    assert only_file(tmp_path).name.startswith("cpu-")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    measured_peaks(cpu, tmp_path)
    assert measured == [cpu, cpu]
    assert any("-77-threads-" in path.name for path in tmp_path.iterdir())


def test_a_real_cpu_has_rates_above_zero() -> None:
    """Measured for real: f32 products and copies, and no clock."""
    peaks = measure_peaks(torch.device("cpu"))
    assert peaks.tflops["f32"] > 0
    assert peaks.gbps > 0
    assert (peaks.clock_mhz, dict(peaks.clocks)) == (None, {})


@pytest.mark.parametrize(
    ("capability", "tflops", "clock"), [((9, 0), 1556.0, 1755), ((10, 3), 989.0, 1980)]
)
def test_integers_have_the_peak_of_8_bit_floats_where_the_device_multiplies_both_alike(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], tflops: float, clock: int
) -> None:
    """The library's products of integers are no bound for Triton's on an H100 (rates from one)."""
    rates = {"bf16": (801.0, 1700), "i8": (989.0, 1980), "f8_e4m3fn": (1556.0, 1755)}

    def best(name: str, _device: torch.device) -> tuple[float, str] | None:
        return (rates[name][0], name) if name in rates else None

    monkeypatch.setattr(device_peaks, "_best_matmul", best)
    monkeypatch.setattr(device_peaks, "_clock_under", lambda name, _device: rates[name][1])
    monkeypatch.setattr(device_peaks, "_memory_gbps", lambda _device: 3000.0)
    monkeypatch.setattr(device_peaks, "sm_clock_mhz", lambda _device: 1980)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    peaks = measure_peaks(CUDA)
    assert (peaks.tflops["i8"], peaks.clocks["i8"]) == (tflops, clock)
    assert (peaks.tflops["f8_e4m3fn"], peaks.tflops["bf16"]) == (1556.0, 801.0)
