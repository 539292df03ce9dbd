"""`build_model_on_devices`: builds the table of a model, with its problems tuned on all devices.

The model is compiled on the first device only: once to see what it asks, with nothing measured, and
at the end as in every build, to tune what needs the model and to judge the outputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.machine_state import united
from warmup.core.miss_reasons import MissReason
from warmup.core.phases import BuildStage
from warmup.diagnostics.misses import MissedProblem
from warmup.keys.registry import kind_of
from warmup.tuning.build import build
from warmup.tuning.devices.build import build_on_devices
from warmup.tuning.devices.local_runner import PROBLEM_S
from warmup.tuning.devices.names import parse_devices
from warmup.tuning.report import BuildReport, Observer
from warmup.tuning.rows_from import united_sources

# Arguments of `build` that `build_on_devices` has too, and for which they mean the same.
_OF_PROBLEMS: Final = (
    *("mode", "backends", "tolerance", "launch", "l2", "fused_top_k", "search"),
    "wait_for_quiet",
)
REFUSED: Final = ("force", "retry", "budget")


def build_model_on_devices(
    model: str,
    *,
    devices: str,
    problem_limit_s: float = PROBLEM_S,
    observer: Observer | None = None,
    **arguments: Any,
) -> BuildReport:
    """Tune the kernels of *model* on all of *devices*, and write the winners to a table.

    *arguments* are those of `warmup.tuning.build.build`, except ``device``, ``force``, ``retry``
    and ``budget``. Problems that can be tuned without the model are distributed as by
    `build_on_devices`; the others are tuned on the first device when those are in the table. The
    report is that of the whole build.

    Raises:
        SettingsError: an argument cannot be used here.
        WarmupError: as `build` and `build_on_devices` do.
    """
    if given := [name for name in REFUSED if arguments.get(name)]:
        raise SettingsError(
            f"a build on several devices has no {shown(', '.join(given))}", "build on one device"
        )
    started = time.monotonic()
    first = parse_devices(devices)[0].name
    is_dry = arguments.pop("dry_run", False)
    watcher = observer if is_dry else None  # the last build reports the model again
    planned = build(model, device=first, dry_run=True, observer=watcher, **arguments)
    assert planned.plan is not None
    if is_dry:
        return planned
    ahead: BuildReport | None = None
    problems = list(_without_model(planned.plan.missing))
    if problems:
        try:
            ahead = build_on_devices(
                problems,
                devices=devices,
                out=planned.path,
                problem_limit_s=problem_limit_s,
                observer=observer,
                **{name: arguments[name] for name in _OF_PROBLEMS if name in arguments},
            )
        except NothingRecordedError:
            ahead = None  # none could be rebuilt: the model asks for all of them
    final = build(model, device=first, observer=observer, **{**arguments, "out": planned.path})
    if ahead is None:
        return replace(final, seconds=time.monotonic() - started)
    again = {one.key for one in final.timings}
    return replace(
        final,
        timings=(*(one for one in ahead.timings if one.key not in again), *final.timings),
        seconds=time.monotonic() - started,
        not_fused={**ahead.not_fused, **final.not_fused},
        rows_from=united_sources(planned.rows_from, final.rows_from),
        machine=united([ahead.machine, final.machine]),
        stages={
            stage: ahead.stages.get(stage, 0.0) + final.stages.get(stage, 0.0)
            for stage in BuildStage
            if stage in ahead.stages or stage in final.stages
        },
        devices=ahead.devices,
    )


def _without_model(keys: tuple[str, ...]) -> Iterator[MissedProblem]:
    """Yield those of *keys* that can be rebuilt from the key alone, as missed problems."""
    for key in keys:
        kind = kind_of(key)
        if kind.rebuild is not None:
            yield MissedProblem(key, kind.name, MissReason.NOT_IN_TABLE, 1)
