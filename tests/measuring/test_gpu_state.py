"""The condition of a GPU, read through a fake NVML, since the test machine has no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from warmup.measuring.machine import clock_note, read_condition, sm_clock_mhz

CUDA = torch.device("cuda", 1)
MIB = 2**20


class FakeNVMLError(Exception):
    """The base class of errors, as in NVML."""


@dataclass
class FakeGpu:
    """The answers of the fake NVML, and the functions that were called."""

    processes: list[tuple[int, int | None]] = field(default_factory=list)
    reasons: int = 0
    busy: int = 0
    fails: str = ""
    asked: list[str] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)

    def module(self) -> ModuleType:
        """Return a module in place of ``pynvml``."""
        made: Any = ModuleType("pynvml")
        made.NVMLError, made.NVML_CLOCK_SM = FakeNVMLError, 1
        answers: dict[str, Callable[..., object]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByUUID": self.uuids.append,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes
            ],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: self.reasons,
            "nvmlDeviceGetClockInfo": lambda _handle, _which: 1500,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=self.busy),
        }
        for name, answer in answers.items():
            setattr(made, name, self._noted(name, answer))
        return made

    def _noted(self, name: str, answer: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object) -> object:
            self.asked.append(name)
            if name == self.fails:
                raise FakeNVMLError(f"{name} failed")
            return answer(*arguments)

        return noted


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    found = FakeGpu()
    monkeypatch.setitem(sys.modules, "pynvml", found.module())
    properties = SimpleNamespace(uuid="aaaa-bbbb")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    return found


def test_what_slows_a_gpu_is_a_complaint(gpu: FakeGpu) -> None:
    """Not our own processes, the power cap, clocks that the user set, nor a display's load."""
    throttled = "its clock is throttled: "
    for processes, reasons, busy, complaints in (
        ([(10, 3 * MIB)], 0x1 | 0x2 | 0x4, 5, ()),
        ([(10, 3 * MIB), (77, 5 * MIB)], 0, 0, ("another process holds 5 MiB of it",)),
        ([(77, 5 * MIB), (78, 7 * MIB)], 0, 0, ("2 others hold 12 MiB of it",)),
        ([(77, None)], 0, 0, ("another process holds 0 MiB of it",)),
        ([], 0x48, 0, (f"{throttled}hardware slowdown, hardware thermal slowdown",)),
        ([], 0x1 | 0x4 | 0x20, 0, (f"{throttled}software thermal slowdown",)),
        ([], 0x80, 0, (f"{throttled}hardware power brake",)),
        ([], 0, 6, ("it is 6 % busy",)),
    ):
        gpu.processes, gpu.reasons, gpu.busy = processes, reasons, busy
        found = read_condition(CUDA, frozenset({10, 11}))
        assert (found.complaints, found.unknown) == (complaints, None), complaints
        assert found.is_power_capped == bool(reasons & 0x4), complaints
        assert found.clock_mhz == 1500
    assert set(gpu.uuids) == {"GPU-aaaa-bbbb"}  # NVML may number devices otherwise than CUDA


def test_what_nvml_cannot_say_is_unknown(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason; nothing is raised, and the library is shut down as often as started."""
    read_condition(CUDA)
    for fails in [name for name in dict.fromkeys(gpu.asked) if name != "nvmlShutdown"]:
        gpu.fails, gpu.asked = fails, []
        found = read_condition(CUDA)
        assert found.unknown is not None, fails
        assert found.unknown.endswith(f"({fails} failed)")
        assert (found.complaints, found.clock_mhz) == ((), None), fails
        assert gpu.asked.count("nvmlShutdown") == (fails != "nvmlInit"), fails
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "no nvidia-ml-py" in (read_condition(CUDA).unknown or "")
    assert sm_clock_mhz(CUDA) is None


def test_the_clocks_of_rows_are_noted() -> None:
    """Where they differ by over a fifth, wherever in the sequence, or the power cap lowered one."""
    for clocks, is_capped, said in (
        ([], False, None),
        ([], True, "the SM clock is lowered at full power"),
        ([1980, 1782], False, None),
        ([1980, 1500, 1900], False, "the SM clock was 1500 to 1980 MHz; "),
        ([1725], True, "the SM clock was 1725 MHz at full power; "),
        ([1980, 1560], True, "the SM clock was 1560 to 1980 MHz at full power; "),
    ):
        found = clock_note(clocks, is_power_capped=is_capped)
        if found is not None and clocks:
            assert found.endswith("a row's times and peak are at the row's own clock"), clocks
            found = found.partition("a row's")[0]
        assert found == said, clocks
