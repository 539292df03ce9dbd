"""Which results of trials are kept for the same GEMM asked again, and when peaks are measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from warmup.core.method import L2, Method
from warmup.core.rows import Family, Rejection, Winner
from warmup.core.trial import Candidate, Outcome, Samples, Trial
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion
from warmup.measuring.trial_process import TrialResult
from warmup.tuning import trials as row_maker
from warmup.tuning.trials import PeakBounds
from warmup.tuning.tuner import Tuner

LIBRARY, FASTER = Winner(Family.EXTERN, "aten::mm"), Winner(Family.TEMPLATE, "triton::a")
NOISE = [Rejection.OUT_OF_MEMORY, Rejection.TIMED_OUT, Rejection.IMPLAUSIBLE]


class _StatedProcess:
    """A process that measures: the control fails at first with *rejection*, if there is one."""

    pid = None

    def __init__(self, rejection: Rejection | None = None) -> None:
        self.rejection, self.trials = rejection, 0

    def run(self, _trial: Trial) -> TrialResult:
        self.trials += 1
        failing = self.rejection if self.trials == 1 else None
        control = (
            Outcome(winner=LIBRARY, samples=Samples((9.0,) * 12))
            if failing is None
            else Outcome(winner=LIBRARY, rejection=failing, said="no")
        )
        return TrialResult((control, Outcome(winner=FASTER, samples=Samples((5.0,) * 12))))

    def close(self) -> None:
        pass


class _StatedWatch:
    """A watch that says for each measurement in turn whether it was disturbed."""

    def __init__(self, *disturbed: bool) -> None:
        self.disturbed, self.clocks = [*disturbed], list[int]()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Callable[[], bool]]:
        is_disturbed = self.disturbed.pop(0) if self.disturbed else False
        yield lambda: is_disturbed


def make_tuner(process: _StatedProcess, *disturbed: bool) -> Tuner:
    stated: Any = process
    tuner = Tuner(torch.device("cpu"), Method(fused_top_k=0), {"bf16": 2e-2}, process=stated)
    watch: Any = _StatedWatch(*disturbed)
    tuner.watch = tuner.bare.watch = watch
    return tuner


def ask(tuner: Tuner, epilogue: str) -> Winner | None:
    """Return the winner of the row for a GEMM with *epilogue*, None without a row."""
    key = f"mm m=64 n=64 k=64 bf16 a=row b=row out=bf16 | epilogue={epilogue}"
    candidates = (Candidate(LIBRARY), Candidate(FASTER))
    tuned = tuner.measure(GemmQuestion(GemmProblem.of_key(key), "cpu", candidates, library=LIBRARY))
    return None if tuned is None else tuned.row.winner


def test_a_gemm_is_measured_once_for_all_its_epilogues() -> None:
    """The child process times the GEMM alone."""
    process = _StatedProcess()
    tuner = make_tuner(process)
    assert [ask(tuner, epilogue) for epilogue in ("none", "relu")] == [FASTER, FASTER]
    assert process.trials == 1


def test_a_control_that_failed_once_is_tried_again() -> None:
    """Other work on the machine may have been the cause: a later layer gets its row."""
    for rejection in NOISE:
        process = _StatedProcess(rejection)
        tuner = make_tuner(process)
        assert [ask(tuner, epilogue) for epilogue in ("none", "relu")] == [None, FASTER], rejection
        assert process.trials == 2, rejection


def test_what_cannot_be_trusted_is_not_kept() -> None:
    """Nothing else on the machine makes a kernel that cannot be launched."""
    process = _StatedProcess(Rejection.LAUNCH)
    tuner = make_tuner(process)
    assert [ask(tuner, epilogue) for epilogue in ("none", "relu")] == [FASTER, FASTER]
    assert process.trials == 1
    # The row has the library's kernel; asked again on a quiet machine, the GEMM is measured.
    process = _StatedProcess()
    tuner = make_tuner(process, True, False)
    assert [ask(tuner, epilogue) for epilogue in ("none", "relu")] == [LIBRARY, FASTER]
    assert process.trials == 2


def test_peaks_are_measured_in_the_turn_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker's times would be disturbed, and the peaks too low."""
    held: list[bool] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        held.append(True)
        yield
        held.append(False)

    monkeypatch.setattr(row_maker, "measured_peaks", lambda _device: held.append(held[-1]))
    bounds = PeakBounds(torch.device("cpu"), L2.COLD, turn)
    assert bounds.peaks() is bounds.peaks() is None
    assert held == [True, True, False]


def test_the_turn_is_that_of_the_watch() -> None:
    """A worker sets it after the tuner was made."""
    tuner, taken = Tuner(torch.device("cpu"), Method(), {}), list[bool]()

    def turn() -> contextlib.AbstractContextManager[None]:
        taken.append(True)
        return contextlib.nullcontext()

    tuner.watch.device_lock = turn
    tuner.bounds.peaks()
    assert taken == [True]
