"""`OutputCheck`: which errors are accepted; `reject_rows`: which rows a wrong output marks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_row, make_table

from warmup.core.errors import BuildError, OutputMismatchError
from warmup.core.rows import Row
from warmup.keys.gemm import Dim
from warmup.keys.pad import Padding, Structure, winner_of
from warmup.models.outputs import WideRun
from warmup.table.store import read
from warmup.tuning.bucket_compiler import ServedBucket
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import CheckedOutput, Observer
from warmup.tuning.session import (
    BisectedRow,
    OutputCheck,
    bisect_rows,
    most_trials,
    reject_rows,
)

TRUE = torch.tensor([3.0, 4.0])
EXACT = TRUE.double()
FLOORS = {"f32": 0.02}


def away(error: float) -> list[torch.Tensor]:
    """Return outputs that are *error* away from the exact ones, always in the same direction."""
    return [(EXACT * (1 + error)).float()]


def make_check(
    eager: float, default: float | str, wide: str | None = None
) -> tuple[OutputCheck, list[str]]:
    """Return a check of outputs, and the list of what it has computed so far."""
    computed: list[str] = []

    def run_wide() -> WideRun:
        computed.append("wide")
        return WideRun([EXACT], "float64 eager on cpu") if wide is None else WideRun(None, wide)

    def run_default() -> Any:
        computed.append("default")
        if isinstance(default, str):
            raise BuildError(default)
        return away(default)

    check = OutputCheck(
        eager=away(eager), floors=FLOORS, run_wide=run_wide, run_default=run_default
    )
    return check, computed


def test_the_error_is_bounded_by_eager_and_default_mode() -> None:
    """1.5 times the larger error, or the floor; only what the decision needs is computed."""
    for eager, default, error, limit, computed in (
        (0.0, 0.0, 0.019, 0.02, []),  # within the floor of eager
        (-0.01, 0.0, 0.015, 0.02, ["wide"]),  # within the floor of the exact result
        (0.04, 0.0, -0.05, 0.06, ["wide"]),  # 1.5 times eager's error, and not more
        (0.01, 0.03, 0.044, 0.045, ["wide", "default"]),  # 1.5 times default mode's
        (0.01, 0.03, 0.046, None, ["wide", "default"]),
        (0.04, 0.01, -0.07, None, ["wide", "default"]),
        (0.0, 0.21, 0.1, None, ["wide", "default"]),  # default mode is wrong itself
        (1.0, 1.0, -1.0, None, ["wide", "default"]),  # eager is, or is random
        (0.0, 0.0, float("nan"), None, ["wide", "default"]),
    ):
        check, done = make_check(eager, default)
        judgement = check.compare(away(error))
        assert (judgement.is_right, done) == (limit is not None, computed), (eager, default, error)
        if limit is not None:
            assert judgement.limit == pytest.approx(limit, rel=1e-4), (eager, default, error)


def test_without_a_wide_run_eager_and_default_mode_are_compared() -> None:
    """The outputs may be 1.5 times as far from eager as default mode is, and the reason is told."""
    check, _ = make_check(0.0, 0.04, wide="no float32 run: it needs 60.0 GiB, cuda:0 has 9.0 GiB")
    right, wrong = check.compare(away(-0.05)), check.compare(away(-0.07))
    assert (right.is_right, wrong.is_right) == (True, False)
    assert str(wrong) == (
        "7.00e-02 away from eager (relative L2), limit 6.00e-02 (default mode 4.00e-02); "
        "no float32 run: it needs 60.0 GiB, cuda:0 has 9.0 GiB"
    )
    # Where default mode fails, eager's error remains as the bound.
    check, _ = make_check(0.04, "compiling failed")
    assert check.compare(away(-0.05)).is_right
    assert check.compare(away(-0.07)).remark == "default mode was not compared: compiling failed"


def test_the_tensor_that_is_judged_is_the_worst() -> None:
    """Each tensor has its own limit: a right one does not hide one that is wrong."""
    first, second = torch.tensor([1.0]), torch.tensor([100.0])
    check = OutputCheck(
        eager=[(first * 1.1, second)],
        floors=FLOORS,
        run_wide=lambda: WideRun([(first, second)], "wide"),
    )
    judgement = check.compare([(first * 1.12, second * 1.03)])
    assert not judgement.is_right
    assert judgement.error == pytest.approx(0.03, rel=1e-3)


Wrong = Callable[[Collection[str]], bool]


class _Lines(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.trials = 0

    def rows_tried(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        self.trials += 1

    def said(self, line: str) -> None:
        self.lines += [line] if "not trusted" in line else []


@dataclass
class _Compiler:
    progress: Progress


@dataclass
class _Run:
    """A bucket whose output is wrong when ``is_wrong`` says so of the rows that serve it."""

    compiler: _Compiler
    keys: tuple[str, ...]
    is_wrong: Wrong
    padded: dict[Any, Padding] = field(default_factory=dict)
    name: str = "seqlen=16"

    def serve_from(self, keys: Collection[str]) -> list[torch.Tensor]:
        return [TRUE * (2 if self.is_wrong(keys) else 1)]

    def serve(self) -> ServedBucket:
        rows = self.compiler.progress.rows
        keys = tuple(key for key in self.keys if rows[key].untrusted is None)
        return ServedBucket(keys=keys, outputs=self.serve_from(keys), uncovered={})


@dataclass(frozen=True)
class _Group:
    structure: Structure


Case = tuple[_Run, Callable[..., CheckedOutput], _Lines]


@pytest.fixture
def make_case(make_progress: Callable[..., Progress]) -> Callable[..., Case]:
    """``make_case(is_wrong, rows)``: a bucket of eight rows, and what rejects its rows."""

    def make(is_wrong: Wrong, rows: dict[str, Row] | None = None) -> Case:
        keys, lines = tuple(make_key(m) for m in range(1, 9)), _Lines()
        table = make_table({**dict.fromkeys(keys, make_row()), **(rows or {})})
        run = _Run(_Compiler(make_progress(table, observer=lines)), keys, is_wrong)
        check = OutputCheck(
            eager=[TRUE], floors={"f32": 1e-3}, run_wide=lambda: WideRun([TRUE], "wide")
        )

        def reject(judged: Collection[str] = ()) -> CheckedOutput:
            served, stated = run.serve(), cast("Any", run)
            checked = check.compare(served.outputs)
            return reject_rows(stated, served, check, checked, judged)[1]

        return run, reject, lines

    return make


def marked(run: _Run) -> set[str]:
    """Return the keys of the rows on disk that are not trusted."""
    return {k for k, row in read(run.compiler.progress.path).rows.items() if row.untrusted}


def test_each_wrong_row_is_marked_alone(make_case: Callable[..., Case]) -> None:
    """Two rows that are wrong for themselves take two searches, and the rest is right."""
    bad = {make_key(3), make_key(6)}
    run, reject, lines = make_case(lambda keys: not bad.isdisjoint(keys))
    assert reject().is_right
    assert marked(run) == bad == {*run.compiler.progress.distrusted}
    assert len(lines.lines) == 2
    assert lines.trials <= 2 * 5
    assert len(read(run.compiler.progress.path).rows) == 8


def test_of_rows_that_are_wrong_together_the_one_of_this_bucket_is_marked(
    make_case: Callable[..., Case],
) -> None:
    """The row that another bucket was right with stays, and the line says that it is two."""
    pair = {make_key(2), make_key(7)}
    run, reject, lines = make_case(lambda keys: pair <= set(keys))
    assert reject({make_key(7)}).is_right
    assert marked(run) == {make_key(2)}
    assert "is not trusted, together with other rows: " in lines.lines[0]


def test_too_many_wrong_rows_mark_the_whole_bucket(make_case: Callable[..., Case]) -> None:
    """All rows are doubtful then, but those with which other buckets were right.

    So where a compile fails on the way, which leaves no known culprit.
    """
    good = {make_key(1), make_key(8)}
    run, reject, lines = make_case(lambda keys: not good.issuperset(keys))
    assert reject(good).is_right
    assert marked(run) == {make_key(m) for m in range(2, 8)}
    assert "3 rows were not enough: its 3 rows that no other bucket" in lines.lines[-1]

    def is_wrong(keys: Collection[str]) -> bool:
        if len(keys) == 4:
            raise BuildError("compiling failed")
        return make_key(5) in keys

    run, reject, lines = make_case(is_wrong)
    assert reject({make_key(1)}).is_right
    assert marked(run) == {make_key(m) for m in range(2, 9)}
    assert "bisection failed (compiling failed)" in lines.lines[0]


def test_an_output_that_is_wrong_without_rows_marks_none(make_case: Callable[..., Case]) -> None:
    """One trial shows it; the error has the distance, and the table is as before."""
    run, reject, lines = make_case(lambda _keys: True)
    with pytest.raises(OutputMismatchError, match="also without any row; no row is to blame"):
        reject()
    assert (marked(run), lines.trials) == (set(), 1)


def test_padding_that_is_wrong_marks_the_rows_that_pad(make_case: Callable[..., Case]) -> None:
    """The rows of other structures, and those that leave the weights as they are, stay."""
    structure = Structure(inputs=(64,), features=99, outputs=(), dtype="bf16", biases=(True,))
    other = replace(structure, inputs=(32,))
    rows = {
        own.key(Dim.of(m)): replace(make_row(), winner=winner_of(own, size))
        for m, own, size in ((7, structure, 104), (9, structure, 99), (7, other, 104))
    }
    run, reject, _ = make_case(lambda _keys: True, rows)
    run.padded = {_Group(structure): Padding(104)}
    with pytest.raises(OutputMismatchError, match="the 1 rows that pad its weights"):
        reject()
    assert marked(run) == {structure.key(Dim.of(7))}


def test_a_marked_row_is_measured_by_the_next_build_and_not_by_this(
    make_case: Callable[..., Case],
) -> None:
    """Also with --force, which measures everything once."""
    run, reject, _ = make_case(lambda keys: make_key(4) in keys)
    reject()
    progress = run.compiler.progress
    progress.revisit = Revisit(all_rows=True)
    assert not progress.must_tune(make_key(4))
    then = replace(progress, distrusted={}, revisit=Revisit())
    assert [key for key in run.keys if then.must_tune(key)] == [make_key(4)]


KEYS = [f"row {number}" for number in range(100)]


@given(st.integers(1, 100), st.data())
def test_one_wrong_row_is_found_in_logarithmic_time(count: int, data: st.DataObject) -> None:
    """Wherever it stands, and never with more trials than were announced."""
    keys = KEYS[:count]
    wrong = data.draw(st.sampled_from(keys))
    tried: list[int] = []

    def is_wrong(subset: Sequence[str]) -> bool:
        tried.append(len(subset))
        return wrong in subset

    assert bisect_rows(keys, is_wrong) == BisectedRow(wrong, is_alone=True)
    assert len(tried) <= most_trials(count)
