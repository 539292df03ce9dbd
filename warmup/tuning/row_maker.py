"""`RowMaker`: makes the rows of a build within `PeakBounds`, and keeps why keys have none."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch

from warmup.core.events import logger
from warmup.core.method import L2, Method, Search
from warmup.core.roofline import Peaks, Work, share_of_peak
from warmup.core.rows import Evidence, Row, Tuned, Winner
from warmup.core.trial import Outcome
from warmup.measuring.device_peaks import measured_peaks
from warmup.measuring.measured_rows import make_row, make_ways_row
from warmup.tuning.region_questions import WaitingQuestion


@dataclass
class PeakBounds:
    """The peaks of *device*, measured when they are first needed, as bounds of times with *l2*.

    ``turn`` is that of `MachineWatch`: other processes may measure on the device.
    """

    device: torch.device
    l2: L2
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    known: Peaks | None = None
    _is_measured: bool = False

    def peaks(self) -> Peaks | None:
        """Return the measured peaks of the device, which are ``known`` from then on."""
        if not self._is_measured:
            with self.turn():
                self.known, self._is_measured = measured_peaks(self.device), True
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return self.known

    def bounding(self, work: Work | None) -> Peaks | None:
        """Return the peaks that bound the time of *work*; None where that is unknown.

        With a warm L2, memory bandwidth is no bound. None on a CPU, which other processes share:
        its peaks are for review, and refuse nothing.
        """
        peaks = self.peaks() if work is not None and self.device.type == "cuda" else None
        if peaks is None or self.l2 is L2.COLD:
            return peaks
        return replace(peaks, gbps=math.inf)

    def floor_us(self, work: Work | None) -> float | None:
        """Return the time of *work* at the peaks; None where no peaks bound it."""
        peaks = self.bounding(work)
        if peaks is None or work is None:
            return None
        return share_of_peak(peaks, work.dtype, work.flops, work.moved, 1.0) or None


@dataclass
class RowMaker:
    """Makes rows of outcomes measured by *method*, with rates within *bounds*.

    ``not_tuned`` has, by key, why no candidate could be measured, and ``library_rows`` a row with
    the library default for such a key; ``not_fused`` has, by key, why a row was measured bare. With
    ``only`` no other keys are measured.
    """

    method: Method
    bounds: PeakBounds
    not_tuned: dict[str, str] = field(default_factory=dict)
    not_fused: dict[str, str] = field(default_factory=dict)
    library_rows: dict[str, Row] = field(default_factory=dict)
    only: frozenset[str] | None = None

    def row_for(
        self,
        key: str,
        outcomes: Sequence[Outcome],
        library: Winner,
        *,
        work: Work | None = None,
        clock_mhz: int | None = None,
        search: Search = Search.DEFAULT,
        winner: Winner | None = None,
        is_disturbed: bool = False,
        method: Method | None = None,
    ) -> Tuned | None:
        """Return what `make_row` does, and keep why there is no row where there is none."""
        tuned = make_row(
            key,
            outcomes,
            library,
            method or self.method,
            work=work,
            peaks=self.bounds.bounding(work),
            clock_mhz=clock_mhz,
            search=search,
            winner=winner,
            is_disturbed=is_disturbed,
        )
        if tuned is None:
            library_first = sorted(outcomes, key=lambda one: one.winner != library)
            reason = next((one.said for one in library_first if one.said), "no candidate was left")
            self.give_up(key, library, reason)
        elif self.not_tuned.pop(key, None) is not None:  # a later layer or bucket asked again
            del self.library_rows[key]
        return tuned

    def ways_row(
        self,
        waiting: WaitingQuestion,
        outcomes: Sequence[Outcome],
        clock_mhz: int | None,
        *,
        failure: str,
        is_disturbed: bool,
    ) -> Tuned | None:
        """Return the row for *outcomes* of the ways in the region of *waiting*.

        Where the way of default mode has no time, inductor's own calls decide, if there are any;
        without any outcomes *failure* says why.
        """
        key, library = waiting.question.key, waiting.question.library
        as_is = next((one for one in outcomes if one.winner == library), None)
        tuned = make_ways_row(
            *(key, outcomes, waiting.bare, library, self.method),
            clock_mhz=clock_mhz,
            is_disturbed=is_disturbed,
        )
        if tuned is None or as_is is None or as_is.time_us is None:
            return self.bare_ways_row(waiting, as_is.said if as_is else failure)
        self.forget(key)
        return tuned

    def bare_ways_row(self, waiting: WaitingQuestion, reason: str) -> Tuned | None:
        """Return the row for the times of inductor's own calls; without any calls there is none.

        ``not_fused`` then has *reason*, or ``not_tuned`` where there is no row.
        """
        key, library = waiting.question.key, waiting.question.library
        if not waiting.bare:
            logger.info("%s: not measured: %s", key, reason)  # a server prints no report of a build
            self.give_up(key, library, reason)
            return None
        self.not_fused[key] = f"inductor's own calls decided: {reason}"
        logger.info("%s: %s", key, self.not_fused[key])  # a server prints no report of a build
        return self.row_for(key, waiting.bare, library, is_disturbed=waiting.is_disturbed)

    def is_wanted(self, key: str, library: Winner) -> bool:
        """Return whether *key* may be measured; else keep that it was not."""
        if self.only is None or key in self.only:
            return True
        self.give_up(key, library, "it has no row, and only rows of the table are measured again")
        return False

    def give_up(self, key: str, library: Winner, reason: str) -> None:
        """Keep *reason* as why *key* has no row; serving takes *library* then."""
        self.not_tuned[key] = reason
        no_evidence = Evidence(
            time_us=math.inf, library_us=None, runner_up=None, runner_up_us=None, tried=0
        )
        self.library_rows[key] = Row(library, no_evidence)

    @contextlib.contextmanager
    def measuring_any(self) -> Iterator[None]:
        """Measure keys outside of ``only`` too while the context is open."""
        only, self.only = self.only, None
        try:
            yield
        finally:
            self.only = only

    def forget(self, key: str) -> None:
        """Drop why *key* has no row, or one that was measured bare."""
        self.not_fused.pop(key, None)
        self.not_tuned.pop(key, None)
        self.library_rows.pop(key, None)
