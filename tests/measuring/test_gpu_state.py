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
    clocks: tuple[int, int] = (1500, 1980)
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
            "nvmlDeviceGetClockInfo": lambda _handle, _which: self.clocks[0],
            "nvmlDeviceGetMaxClockInfo": lambda _handle, _which: self.clocks[1],
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


def test_a_gpu_of_our_own_has_nothing_to_complain_about(gpu: FakeGpu) -> None:
    found = read_condition(CUDA)
    assert (found.clock_mhz, found.max_clock_mhz, found.used_percent) == (1500, 1980, 0)
    assert (found.complaints, found.unknown) == ((), None)


def test_the_gpu_is_found_by_its_uuid(gpu: FakeGpu) -> None:
    """CUDA and NVML may number devices differently."""
    read_condition(CUDA)
    assert gpu.uuids == ["GPU-aaaa-bbbb"]


@pytest.mark.parametrize(
    ("processes", "complaint"),
    [
        ([(10, 3 * MIB), (77, 5 * MIB)], "another process holds 5 MiB of it"),
        ([(77, 5 * MIB), (78, 7 * MIB), (11, MIB)], "2 others hold 12 MiB of it"),
        ([(77, None)], "another process holds 0 MiB of it"),
    ],
    ids=["one", "two", "size unknown"],
)
def test_others_on_the_gpu_are_a_complaint(
    gpu: FakeGpu, processes: list[tuple[int, int | None]], complaint: str
) -> None:
    """The number of processes and their memory; our own processes are not counted."""
    gpu.processes = processes
    assert read_condition(CUDA, frozenset({10, 11})).complaints == (complaint,)


@pytest.mark.parametrize(
    ("reasons", "names"),
    [
        (0x4, ()),
        (0x8 | 0x40, ("hardware slowdown", "hardware thermal slowdown")),
        (0x20, ("software thermal slowdown",)),
        (0x80, ("hardware power brake",)),
        (0x1, ()),
        (0x2, ()),
        (0x1 | 0x4 | 0x20, ("software thermal slowdown",)),
    ],
    ids=["power", "heat", "software", "brake", "idle", "set by the user", "several"],
)
def test_throttle_reasons_are_named(gpu: FakeGpu, reasons: int, names: tuple[str, ...]) -> None:
    """An idle GPU, clocks set by the user and the power cap are no complaints."""
    gpu.reasons = reasons
    found = read_condition(CUDA)
    assert found.throttled_by == names
    assert found.is_power_capped == bool(reasons & 0x4)
    assert found.complaints == ((f"its clock is throttled: {', '.join(names)}",) if names else ())


@pytest.mark.parametrize(("busy", "count"), [(0, 0), (5, 0), (6, 1), (100, 1)])
def test_a_busy_gpu_is_a_complaint(gpu: FakeGpu, busy: int, count: int) -> None:
    """A few percent of load, such as a display's, are no complaint."""
    gpu.busy = busy
    assert read_condition(CUDA).complaints == (f"it is {busy} % busy",) * count


CALLS = [
    *("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses"),
    *("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetClockInfo"),
    *("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetUtilizationRates"),
]


@pytest.mark.parametrize("fails", CALLS)
def test_an_nvml_error_is_reported_as_unknown(gpu: FakeGpu, fails: str) -> None:
    """On an NVML error the condition is unknown and gives the reason; nothing is raised."""
    gpu.fails = fails
    found = read_condition(CUDA)
    assert found.unknown is not None
    assert found.unknown.endswith(f"({fails} failed)")
    assert (found.complaints, found.clock_mhz) == ((), None)


@pytest.mark.parametrize("fails", ["", *CALLS[1:]])
def test_the_library_is_shut_down_as_often_as_started(gpu: FakeGpu, fails: str) -> None:
    """Init and shutdown calls are balanced, also after an error."""
    gpu.fails = fails
    read_condition(CUDA)
    assert (gpu.asked.count("nvmlInit"), gpu.asked.count("nvmlShutdown")) == (1, 1)
    assert gpu.asked[-1] == "nvmlShutdown"


def test_a_missing_nvml_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = read_condition(CUDA)
    assert found.unknown is not None
    assert "no nvidia-ml-py" in found.unknown
    assert sm_clock_mhz(CUDA) is None


def test_the_clocks_of_rows_are_noted() -> None:
    """Where they differ by over a fifth, wherever in the sequence, or the power cap lowered one."""
    for clocks, is_capped, said in (
        ([], False, None),
        ([], True, "the SM clock is lowered at full power"),
        ([1980], False, None),
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
