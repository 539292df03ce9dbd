"""`reject_rows`: which rows are marked for a wrong output, found by bisection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_row, make_table

from warmup.core.errors import BuildError, OutputMismatchError
from warmup.core.rows import Evidence, Row
from warmup.keys.weight import Padding, Structure, winner_of
from warmup.models.outputs import WideRun
from warmup.table.store import read
from warmup.tuning.bucket_compiler import ServedBucket
from warmup.tuning.output_check import (
    BisectedRow,
    OutputCheck,
    bisect_rows,
    most_trials,
    reject_rows,
)
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import CheckedOutput, Observer

EXACT = torch.tensor([3.0, 4.0])
Wrong = Callable[[Collection[str]], bool]


class _Lines(Observer):
    """Keeps the lines about rejected rows, and counts trials."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.trials = 0

    def rows_tried(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        self.trials += 1

    def rows_rejected(self, line: str) -> None:
        self.lines.append(line)


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
        return [EXACT * (2 if self.is_wrong(keys) else 1)]

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
        keys = tuple(make_key(m) for m in range(1, 9))
        table = make_table({**dict.fromkeys(keys, make_row()), **(rows or {})})
        lines = _Lines()
        progress = make_progress(table, observer=lines)
        run = _Run(_Compiler(progress), keys, is_wrong)
        check = OutputCheck(
            eager=[EXACT], floors={"f32": 1e-3}, run_wide=lambda: WideRun([EXACT], "wide")
        )

        def reject(judged: Collection[str] = ()) -> CheckedOutput:
            served = run.serve()
            _, judgement = reject_rows(
                run,  # type: ignore[arg-type]
                served,
                check,
                check.compare(served.outputs),
                judged,
            )
            return judgement

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
    """All rows are doubtful then, but those with which other buckets were right."""
    good = {make_key(1), make_key(8)}
    run, reject, lines = make_case(lambda keys: not good.issuperset(keys))
    assert reject(good).is_right
    assert marked(run) == {make_key(m) for m in range(2, 8)}
    assert "3 rows were not enough: its 3 rows that no other bucket" in lines.lines[-1]


def test_a_bisection_that_fails_marks_the_whole_bucket(make_case: Callable[..., Case]) -> None:
    """A compile that fails on the way leaves no known culprit, and no wrong row in service."""

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
    evidence = Evidence(time_us=1, library_us=2, runner_up=None, runner_up_us=None, tried=2)
    keys = [
        f"weight n m={m} in={size} features=99 bf16 bias=1"
        for m, size in ((7, 64), (9, 64), (7, 32))
    ]
    sizes = (104, 99, 104)
    rows = {
        key: Row(
            winner_of(replace(structure, inputs=(int(key.split("in=")[1][:2]),)), size), evidence
        )
        for key, size in zip(keys, sizes, strict=True)
    }
    run, reject, _ = make_case(lambda _keys: True, rows)
    run.padded = {_Group(structure): Padding(104)}
    with pytest.raises(OutputMismatchError, match="the 1 rows that pad its weights"):
        reject()
    assert marked(run) == {keys[0]}


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

    assert bisect_rows(keys, is_wrong) == BisectedRow(wrong, is_alone=True, trials=len(tried))
    assert len(tried) <= most_trials(count)


def test_the_last_row_of_those_that_are_wrong_together_is_blamed() -> None:
    """Without that row the others are right, and it is not wrong alone."""

    def is_wrong(subset: Sequence[str]) -> bool:
        return {"row 2", "row 7"} <= set(subset)

    blame = bisect_rows(KEYS[:19], is_wrong)
    assert (blame.key, blame.is_alone) == ("row 7", False)
    # A model that is wrong without the table costs one trial at most.
    for keys in ([], ["row 1", "row 2"]):
        blame = bisect_rows(keys, lambda _subset: True)
        assert (blame.key, blame.trials) == (None, 1), keys
