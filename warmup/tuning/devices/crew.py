"""`Crew`: the runners that take part in a build, once their devices have shown to be comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from warmup.core.errors import BuildError
from warmup.core.machine_state import NOT_CHECKED
from warmup.tuning.devices.comparable import check_one_kind, devices_off
from warmup.tuning.devices.dispatch import start_all
from warmup.tuning.devices.runner import ReadyWorker, Runner
from warmup.tuning.report import Observer


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The runners that take part, what each said when it was ready, and why devices do not."""

    runners: list[Runner]
    ready: dict[str, ReadyWorker]
    control_us: dict[str, float]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> ReadyWorker:
        """The first runner's device, runtime and policy, which are those of all."""
        return self.ready[self.runners[0].name]


def start_crew(runners: Sequence[Runner], pool: ThreadPoolExecutor, watcher: Observer) -> Crew:
    """Start *runners*; return those whose devices are of one kind and comparable.

    Raises:
        SettingsError: the devices are of several kinds.
        BuildError: no worker started, or none on a device whose control problem was timed.
    """
    ready, gone = start_all(runners, pool)
    if not ready:
        raise _no_device("started", gone)
    by_name = {runner.name: runner for runner in runners}
    check_one_kind({name: worker.runtime for name, worker in ready.items()})
    control_us = {
        by_name[name].device: worker.control_us
        for name, worker in ready.items()
        if worker.control_us is not None
    }
    left_out = {
        runner.device: f"the control problem was not timed: {gone[runner.name]}"
        for runner in runners
        if runner.device not in control_us and runner.name in gone
    }
    band = next(iter(ready.values())).policy.timing.near_tie
    left_out |= {**device_reasons(runners, gone), **devices_off(control_us, band)}
    takes_part = [each for each in runners if each.name in ready and each.device not in left_out]
    if not takes_part:
        raise _no_device("can be used", left_out)
    complaints = (each for name in ready for each in named_complaints(name, ready[name].complaints))
    watcher.device_looked_at(tuple(dict.fromkeys(complaints)))
    for name, reason in left_out.items():
        watcher.device_left_out(name, reason)
    for runner in runners:
        if runner not in takes_part:
            runner.stop()
    names = list(dict.fromkeys(runner.device for runner in takes_part))
    watcher.devices_ready(names, control_us)
    return Crew(runners=takes_part, ready=ready, control_us=control_us, left_out=left_out)


def device_reasons(runners: Sequence[Runner], gone: Mapping[str, str]) -> dict[str, str]:
    """Return, by device, why none of its workers is left; *gone* has the reason by runner."""
    reasons: dict[str, str] = {}
    for device in dict.fromkeys(runner.device for runner in runners):
        names = [runner.name for runner in runners if runner.device == device]
        if all(name in gone for name in names):
            reasons[device] = "; ".join(dict.fromkeys(gone[name] for name in names))
    return reasons


def _no_device(what: str, reasons: Mapping[str, str]) -> BuildError:
    """Return the error that no device *what*, with the reason of each, by its name."""
    said = "; ".join(dict.fromkeys(f"{name}: {why}" for name, why in reasons.items()))
    return BuildError(f"no device {what}: {said}", "run `warmup doctor`")


def named_complaints(name: str, complaints: Iterable[str]) -> list[str]:
    """Return *complaints* with the *name* of the device, where they are about one."""
    return [each if each.startswith(NOT_CHECKED) else f"{name}: {each}" for each in complaints]
