"""Waiting for a quiet machine, and what is recorded of a busy one. Time and load are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from warmup.core.device import BUSY_SHARE
from warmup.measuring import machine as machine_watch
from warmup.measuring.machine import Condition, CpuReading, MachineWatch

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
WAITS = 5.0


@dataclass
class Machine:
    """A machine of two CPUs whose time passes in `sleep` only; others take ``load`` of it."""

    load: Callable[[float], float] = lambda _now: 0.0
    now: float = 100.0
    used_s: float = 1000.0
    waits: list[tuple[str, float]] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.used_s += 2 * self.load(self.now) * seconds
        self.now += seconds

    def read(self) -> CpuReading:
        return CpuReading(self.now, 2, self.used_s, 10.0)

    def note_wait(self, reason: str, seconds: float) -> None:
        self.waits.append((reason, seconds))

    def watch(self, wait_s: float = WAITS, device: torch.device = CPU) -> MachineWatch:
        watch = MachineWatch(device, read=self.read)
        watch.start(wait_s, self.note_wait)
        return watch

    def measure(self, watch: MachineWatch, seconds: float = 2.0) -> bool:
        """Measure for so long; return whether that was disturbed."""
        with watch.measuring() as is_disturbed:
            self.sleep(seconds)
        return is_disturbed()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(machine_watch.time, "sleep", made.sleep)
    monkeypatch.setattr(machine_watch.time, "monotonic", lambda: made.now)
    return made


def test_a_turn_is_held_from_the_wait_to_the_end_of_a_measurement(machine: Machine) -> None:
    watch, seen = machine.watch(), list[str]()

    @contextmanager
    def turn() -> Iterator[None]:
        seen.append("taken")
        yield
        seen.append("given back")

    def read() -> CpuReading:
        seen.append("read")
        return machine.read()

    watch.device_lock, watch.read = turn, read
    with watch.measuring():
        seen.append("measured")
    assert list(dict.fromkeys(seen)) == ["taken", "read", "measured", "given back"]


def test_a_load_that_ends_is_waited_out(machine: Machine) -> None:
    machine.load = lambda now: 0.9 if now < 102 else 0.0
    watch = machine.watch()
    assert not machine.measure(watch)
    assert machine.waits == [("other processes take 90% of 2 CPUs", pytest.approx(WAITS))]
    assert 1 < watch.state().waited_s < WAITS


def test_a_load_that_stays_blocks_for_a_stated_time_only(machine: Machine) -> None:
    """All waits of a build together take the stated seconds; then it measures, disturbed."""
    machine.load = lambda _now: 0.5
    watch, began = machine.watch(), machine.now
    assert [machine.measure(watch) for _ in range(4)] == [True] * 4
    assert machine.now - began - 4 * 2.0 == pytest.approx(WAITS, abs=1.0)
    state = watch.state()
    assert (state.disturbed, state.measured, len(machine.waits)) == (4, 4, 1)
    assert state.worst_share == pytest.approx(0.5)


def test_more_than_a_tenth_of_the_cpus_is_a_disturbance(machine: Machine) -> None:
    """A tenth of a second is too few ticks: the load of the last second or more counts then."""
    for load, is_disturbed in ((0.0, False), (BUSY_SHARE, False), (0.2, True)):
        machine.load = lambda _now, load=load: load
        assert machine.measure(machine.watch(0.0)) is is_disturbed, load
    machine.load, watch = lambda _now: 0.0, machine.watch(0.0)
    machine.measure(watch, 10.0)
    machine.load = lambda _now: 1.0
    machine.sleep(5.0)
    assert machine.measure(watch, 0.1)


def test_a_busy_gpu_is_waited_for_before_the_first_measurement(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that others hold is no reason to wait, load and a throttled clock are."""

    def condition(_device: torch.device, _own: frozenset[int]) -> Condition:
        return Condition(used_percent=40 if machine.now < 103 else 0, others=1, others_mib=10)

    monkeypatch.setattr(machine_watch, "read_condition", condition)
    watch = machine.watch(device=GPU)
    machine.measure(watch)
    assert machine.waits == [("the GPU: it is 40 % busy", pytest.approx(WAITS))]
    machine.now = 0.0
    machine.measure(watch)
    assert len(machine.waits) == 1
    assert watch.state().complaints == ("another process holds 10 MiB of it",)


def test_a_clock_that_full_power_lowers_is_noted(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy H200: no doubt, no wait; a clock that heat lowers is doubted still."""
    condition = Condition(is_power_capped=True)
    monkeypatch.setattr(machine_watch, "read_condition", lambda *_: condition)
    watch = machine.watch(device=GPU)
    machine.measure(watch)
    watch.clocks += [1980, 1560]
    note = (
        "the SM clock was 1560 to 1980 MHz at full power; "
        "a row's times and peak are at the row's own clock"
    )
    assert (machine.waits, watch.remarks()) == ([], (note,))
    assert (watch.state().complaints, watch.state().notes) == ((), (note,))
    condition = Condition(throttled_by=("hardware thermal slowdown",))
    assert watch.state().complaints == ("its clock is throttled: hardware thermal slowdown",)
