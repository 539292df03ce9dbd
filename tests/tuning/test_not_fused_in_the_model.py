"""Rows that inductor fuses in their region and not in the model: measured again, not fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table

pytest.importorskip("torch")

from warmup.core.method import CompileOrder, Method
from warmup.core.phases import BuildClock
from warmup.core.rows import Family, Row, Tuned, Winner
from warmup.table.schema import OnMiss
from warmup.table.store import read
from warmup.tuning.bucket_compiler import BucketCompiler, ServedBucket
from warmup.tuning.progress import Progress
from warmup.tuning.trials import RegionQuestions
from warmup.tuning.tuner import variants_of

FUSED = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),), "0123abcd", fused=True)
APART = replace(FUSED, fused=False)


@dataclass
class _Tuner:
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))
    region_questions: RegionQuestions = field(default_factory=RegionQuestions)
    apart: set[str] = field(default_factory=set)
    clock: BuildClock = field(default_factory=BuildClock)
    method: Method = field(default_factory=Method)


@dataclass(frozen=True, kw_only=True)
class _Compiler(BucketCompiler):
    """Compiles nothing: in its model, inductor fuses nothing into the GEMM of ``key``."""

    key: str
    row: Row
    compiled: list[str] = field(default_factory=list)

    def _compile(
        self,
        calls: object,
        name: str,
        on_miss: OnMiss = OnMiss.FALLBACK,
        *,
        measures: bool = False,
        order: CompileOrder = CompileOrder.AS_ASKED,
    ) -> ServedBucket:
        self.compiled.append("tune" if measures else on_miss)
        if measures and self.progress.must_tune(self.key):
            winner = APART if self.key in self.tuner.apart else FUSED
            self.progress.save(Tuned(self.key, replace(self.row, winner=winner), ()))
        differs = self.progress.rows[self.key].winner.fused is True
        found = (self.key,) if differs else ()
        return ServedBucket(keys=(self.key,), outputs=[], uncovered={}, differing=found)


Make = Callable[[bool], _Compiler]


@pytest.fixture
def make(make_progress: Callable[..., Progress]) -> Make:
    """``make(has_row)``: a compiler, with a fused row of an earlier build or an empty table."""

    def make(has_row: bool) -> _Compiler:
        key, row, tuner = make_key(16), make_row(), _Tuner()
        table = make_table({key: replace(row, winner=FUSED)} if has_row else {})
        unused: Any = None  # the model and its setup: nothing is compiled
        shared: dict[str, Any] = {"setup": unused, "model": unused, "tuner": tuner}
        return _Compiler(progress=make_progress(table), key=key, row=row, **shared)

    return make


def test_a_row_that_is_not_fused_in_the_model_is_measured_again(make: Make) -> None:
    """The row on disk is not fused then, and the bucket was served from it; so an earlier row."""
    for has_row in (False, True):
        compiler = make(has_row)
        assert compiler.tune_as_is([], "seqlen=16").differing == (), has_row
        assert compiler.compiled == ["tune", "tune", "strict"], has_row
        assert read(compiler.progress.path).rows[compiler.key].winner == APART, has_row
        assert [tuned.row.winner for tuned in compiler.progress.measured] == [APART], has_row


def test_a_row_is_measured_again_once(make: Make) -> None:
    """Where that changes nothing, the build ends all the same."""
    compiler = make(True)
    compiler.tuner.apart.add(compiler.key)
    assert compiler.tune_as_is([], "seqlen=16").differing == (compiler.key,)
    assert compiler.compiled == ["tune"]


def test_a_template_that_is_measured_apart_has_no_fused_way() -> None:
    """It is compiled not fused where that may win, else not at all."""
    plain, other = replace(FUSED, fused=None), replace(FUSED, uid="triton::other", fused=None)
    assert variants_of([plain, other], [plain], fuses=False) == (APART,)
