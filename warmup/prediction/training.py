"""`TrainingProblem`: a timed problem as a fit needs it; `training_problems` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import SettingsError
from warmup.core.runtime import minor_of
from warmup.keys.gemm_text import parse_problem
from warmup.prediction.features import (
    LIBRARY_CONFIG,
    CandidateConfig,
    GemmSizes,
    config_of,
    library_among,
    sizes_of,
)
from warmup.prediction.timing_lines import MeasuredOn, TimedProblem

RANDOM: Final = "random"


@dataclass(frozen=True, slots=True)
class TrainingProblem:
    """A GEMM without its epilogue, its ``source`` and the time of each config, in microseconds.

    ``source`` is the model that the problem is of, ``random`` for a random problem.
    """

    key: str
    source: str
    sizes: GemmSizes
    times_us: Mapping[CandidateConfig, float]

    @property
    def library_us(self) -> float:
        """The time of the library's kernel."""
        return self.times_us[LIBRARY_CONFIG]

    @property
    def best_us(self) -> float:
        """The shortest time, the library's included."""
        return min(self.times_us.values())


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Problems measured on one device by one method.

    ``left_out`` counts problems by reason, ``scattered`` times of the others that scattered.
    """

    problems: tuple[TrainingProblem, ...]
    on: MeasuredOn
    method: str
    templates: Mapping[str, str]
    left_out: Mapping[str, int]
    scattered: int = 0

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the problems are of, in order; random problems are of none."""
        return tuple(sorted({one.source for one in self.problems} - {RANDOM}))


def training_set(timed: Sequence[TimedProblem]) -> TrainingSet:
    """Return *timed* as a training set. A GEMM with several epilogues counts once.

    Raises:
        SettingsError: no problem can be used, or they were measured on different devices, versions
            or by different methods.
    """
    left_out: dict[str, int] = {}
    problems: dict[str, TrainingProblem] = {}
    scattered = 0
    for one in timed:
        problem = parse_problem(one.key).without_epilogue
        sizes = sizes_of(problem)
        library = library_among(problem.op, one.times_us)
        reason = (
            "of a problem whose times are not predicted"
            if sizes is None
            else "without a time that can be used"
            if not one.times_us
            else "without a time of the library"
            if library is None
            else "not measured on a GPU, or nobody knows on which"
            if one.on is None or not one.on.sm_count
            else "with times that other processes disturbed"
            if one.is_unstable
            else None
        )
        if reason is not None or sizes is None:
            left_out[reason or ""] = left_out.get(reason or "", 0) + 1
            continue
        times = {
            config: us
            for winner, us in one.times_us.items()
            if (config := config_of(winner, library)) is not None
        }
        scattered += one.scattered
        source = one.source or "unnamed"
        problems[problem.key] = TrainingProblem(problem.key, source, sizes, times)
    used = [one for one in timed if one.on is not None and one.on.sm_count]
    if not problems:
        raise SettingsError(
            f"no problem of {len(timed)} can be used: {_counted(left_out)}",
            "measure some with `warmup build --problems FILE --timings FILE`",
        )
    return TrainingSet(
        tuple(problems[key] for key in sorted(problems)),
        one_origin([one.on for one in used if one.on is not None]),
        one_method(one.method for one in used),
        {uid: text for one in used for uid, text in one.templates.items()},
        left_out,
        scattered,
    )


def one_origin(places: Iterable[MeasuredOn]) -> MeasuredOn:
    """Return the device and versions of all *places*.

    Raises:
        SettingsError: they are of different devices, or of different minors of torch or Triton.
    """
    found = sorted(set(places), key=str)
    _same("devices", {(one.device, one.sm_count, one.arch) for one in found})
    _same("torch versions", {minor_of(one.torch) for one in found})
    _same("triton versions", {minor_of(one.triton) for one in found})
    return found[-1]


def one_method(methods: Iterable[str]) -> str:
    """Return the only method of *methods*.

    Raises:
        SettingsError: there are several.
    """
    return _same("methods", set(methods))


def _same(what: str, values: Iterable[object]) -> str:
    found = sorted(map(str, values))
    if len(found) != 1:
        raise SettingsError(
            f"the timings are of different {what}: {', '.join(found)}",
            "fit each with its own files",
        )
    return found[0]


def _counted(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "none given"
    )
