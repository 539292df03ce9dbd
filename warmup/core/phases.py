"""`PhaseClock`, `BuildClock`: the seconds of a start or a build by part, none of them twice."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Generic, TypeVar

DECIMALS: Final = 3  # of seconds in documents


class Phase(StrEnum):
    """What a start spends time on, in the order of a start.

    A second belongs to the innermost phase under way: `FIRST_CALLS` do not contain the compile that
    a first call causes, and `MEASURING` is not part of the phase in which inductor measures.
    """

    IMPORT = "import"
    LOAD = "load"
    INSTALL = "install"
    TRACING = "tracing"
    AOT = "aot"
    CACHES = "caches"
    LOWERING = "lowering"
    SCHEDULING = "scheduling"
    CODE_GENERATION = "code_generation"
    LOADING_CODE = "loading_code"
    COMPILING_KERNELS = "compiling_kernels"
    WAITING_FOR_KERNELS = "waiting_for_kernels"
    MEASURING = "measuring"
    FIRST_CALLS = "first_calls"
    OTHER = "other"

    @property
    def label(self) -> str:
        return "AOT" if self is Phase.AOT else self.value.replace("_", " ")


SPARED_BY_CACHES: Final = (
    *(Phase.LOWERING, Phase.SCHEDULING, Phase.CODE_GENERATION),
    *(Phase.COMPILING_KERNELS, Phase.WAITING_FOR_KERNELS),
)
PhaseSeconds = Mapping[Phase, float]
StageSeconds = Mapping["BuildStage", float]


class BuildStage(StrEnum):
    """What a build spends time on. A second belongs to the innermost stage under way.

    `COMPILING` are compiles and first calls of a bucket without what is measured in them.
    `BARE_TRIALS` compile nothing; other trials and searches compile what they time. `REGIONS` are
    the compiled ways of paddings and splits. `JUDGING` has eager's outputs, and what a call costs.
    """

    COMPILING = "compiling"
    BARE_TRIALS = "bare_trials"
    FUSED_TRIALS = "fused_trials"
    LAUNCH_SEARCHES = "launch_searches"
    REDUCTIONS = "reductions"
    REGIONS = "regions"
    WEIGHTS = "weights"
    JUDGING = "judging"
    OTHER = "other"

    @property
    def label(self) -> str:
        return self.value.replace("_", " ")


_P = TypeVar("_P", Phase, BuildStage)


class _NestedClock(Generic[_P]):
    """A clock that adds each second to one phase: the innermost that was entered, else *base*.

    The seconds of all phases add up to the time since *since*, by `time.monotonic`; without it,
    since the clock was made. A clock is for one thread.
    """

    def __init__(self, base: _P, since: float | None = None) -> None:
        self._seconds: dict[_P, float] = {}
        self._under_way: list[_P] = [base]
        self._since = time.monotonic() if since is None else since

    def enter(self, phase: _P) -> None:
        """Begin *phase* inside the phase under way; `leave` ends it."""
        self.charge(self._under_way[-1])
        self._under_way.append(phase)

    def leave(self) -> None:
        self.charge(self._under_way[-1])
        if len(self._under_way) > 1:
            self._under_way.pop()

    @contextlib.contextmanager
    def phase(self, phase: _P) -> Iterator[None]:
        """Enter *phase*, and leave it and all that is still under way inside it at the exit."""
        depth = len(self._under_way)
        self.enter(phase)
        try:
            yield
        finally:
            self.charge(self._under_way[-1])
            del self._under_way[depth:]

    def charge(self, phase: _P) -> None:
        """Add the time since the last change of phases to *phase*, not to the phase under way."""
        now = time.monotonic()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[_P, float]:
        """Return the seconds of each phase that was entered since the last `take`."""
        self.charge(self._under_way[-1])
        taken, self._seconds = self._seconds, {}
        return {phase: taken[phase] for phase in type(self._under_way[0]) if phase in taken}


class PhaseClock(_NestedClock[Phase]):
    """The clock of a start; what no phase was entered for is `Phase.OTHER`."""

    def __init__(self, since: float | None = None) -> None:
        super().__init__(Phase.OTHER, since)


class BuildClock(_NestedClock[BuildStage]):
    """The clock of a build; what no stage was entered for is `BuildStage.OTHER`.

    ``on_left`` gets each stage that was left, outside of a region's, with its seconds: those of a
    compile without the stages inside it, of others with them.
    """

    def __init__(self, since: float | None = None) -> None:
        super().__init__(BuildStage.OTHER, since)
        self.on_left: Callable[[BuildStage, float], None] = lambda _stage, _seconds: None
        self._inside = 0.0

    @contextlib.contextmanager
    def phase(self, phase: BuildStage) -> Iterator[None]:
        started, before, self._inside = time.monotonic(), self._inside, 0.0
        try:
            with super().phase(phase):
                yield
        finally:
            taken = time.monotonic() - started
            own = taken - self._inside if phase is BuildStage.COMPILING else taken
            self._inside = before + taken
            if BuildStage.REGIONS not in self._under_way:
                self.on_left(phase, own)


def added(parts: Iterable[PhaseSeconds]) -> dict[Phase, float]:
    """Return the sum of *parts* by phase, in the order of a start."""
    sums = Counter[Phase]()
    for part in parts:
        sums.update(part)
    return {phase: sums[phase] for phase in Phase if phase in sums}


def document_of(seconds: PhaseSeconds | StageSeconds) -> dict[str, float]:
    """Return *seconds* as JSON values, each rounded to a millisecond."""
    return {str(phase): round(taken, DECIMALS) for phase, taken in seconds.items()}


def phases_from(document: Mapping[str, float]) -> dict[Phase, float]:
    """Return the phases of what `document_of` returned."""
    return {Phase(name): seconds for name, seconds in document.items()}
