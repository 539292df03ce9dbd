"""Whether devices may share a build: they are of one kind, and as fast as each other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from warmup.core.errors import SettingsError
from warmup.core.runtime import Runtime, compare_runtimes


def check_one_kind(runtimes: Mapping[str, Runtime]) -> None:
    """Check that all devices, each with its runtime in *runtimes*, are of one kind.

    Raises:
        SettingsError: two differ; the error names both.
    """
    (first, expected), *others = runtimes.items()
    for name, runtime in others:
        is_other = any(mismatch.is_hard for mismatch in compare_runtimes(expected, runtime))
        if is_other or runtime.device.name != expected.device.name:
            raise SettingsError(
                f"--devices mixes kinds: {first} is {_described(expected)}, {name} is "
                f"{_described(runtime)}",
                "name devices of one kind, and build for each kind into a table of its own",
            )


def _described(runtime: Runtime) -> str:
    """Return what tells the device of *runtime* from devices of another kind, for people."""
    device = runtime.device
    counts = ((device.sm_count, "SMs"), (device.memory_gib, "GiB"), (device.threads, "threads"))
    known = " and ".join(f"{count} {unit}" for count, unit in counts if count is not None)
    return f"{device.name}{f' {device.mig}' if device.mig else ''} with {known}"


def devices_off(control_us: Mapping[str, float], band: float) -> dict[str, str]:
    """Return, by device, why its rows would not be comparable; empty where all are.

    *control_us* has the time of the control problem on each device. The device in the middle is
    what the others are held against (of two the faster, of four the second), and *band* is the
    share of its time by which another may differ.
    """
    if not control_us:
        return {}
    middle_us = statistics.median_low(control_us.values())
    middle = next(name for name, time_us in control_us.items() if time_us == middle_us)
    return {
        name: f"the control problem takes {time_us:.1f} us, {time_us / middle_us - 1:+.1%} against "
        f"{middle} ({middle_us:.1f} us); at most {band:.0%} is comparable"
        for name, time_us in control_us.items()
        if abs(time_us / middle_us - 1) > band
    }
