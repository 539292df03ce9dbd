"""Problems without their model: what is tuned of a rebuilt module, and the plan of a dry run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_row

from warmup.core.errors import MissReason
from warmup.core.events import Emitter, Event, EventName
from warmup.core.rows import Family, Row, Search, Winner
from warmup.core.trial import Candidate, Tuned
from warmup.keys.gemm import GemmProblem
from warmup.keys.kind import Kind, ProblemOfKey
from warmup.keys.pad import AS_IS, PADDED
from warmup.keys.question import CallsQuestion, GemmQuestion, Question
from warmup.serving.audit import encode_problems
from warmup.table.schema import OnMiss
from warmup.tuning.build import BuildOptions, BuildRequest, ThisProcess, build
from warmup.tuning.problems import OneKeyLookup, ProblemsSource

GEMM = "mm m=16 n=96 k=64 f32 a=row b=row out=f32 | epilogue=none"
PAD = "pad mm m=16 n=96 k=64 f32 a=row b=row"
TOY = "toy cat m=8 n=4 via=sum f32 tag=7"
LIBRARY = Winner(Family.EXTERN, "aten::mm")
Made = tuple[OneKeyLookup, list[Event], list[Question]]
Make = Callable[..., Made]


@pytest.fixture
def make_lookup(toy_kind: Kind) -> Make:
    """``make_lookup(TOY)``: what answers while that key is tuned, its events and measurements."""

    def make(wanted: str, **changes: Any) -> Made:
        events, asked = list[Event](), list[Question]()

        class Measurer:
            def measure(self, question: Question) -> Tuned | None:
                asked.append(question)
                return Tuned(question.problem.key, make_row(), ())

        tuner: Any = Measurer()
        emitter = Emitter([events.append])
        given: Any = {"tuner": tuner, "wanted": wanted, **changes}
        return OneKeyLookup({}, OnMiss.FALLBACK, emitter, **given), events, asked

    return make


def question_of(key: str) -> GemmQuestion:
    return GemmQuestion(GemmProblem.of_key(key), "cpu", (), library=LIBRARY)


def test_the_missed_key_is_tuned_and_what_is_beside_it_is_not(make_lookup: Make) -> None:
    """A product in the module of another kind's key keeps the library's kernel, and has no row."""
    toy = CallsQuestion(ProblemOfKey(TOY), LIBRARY, {})
    for wanted, question, is_tuned in (
        (GEMM, question_of(GEMM), True),
        (TOY, question_of(GEMM), False),
        (GEMM, toy, False),
        (PAD, question_of(GEMM), True),  # the ways of a pad key are timed with tuned products
    ):
        lookup, events, _ = make_lookup(wanted)
        assert (lookup.measure(question) != LIBRARY) is is_tuned, (wanted, question)
        tuned = [(event.name, event.fields["key"]) for event in events]
        assert tuned == ([(EventName.TUNED, GEMM)] if is_tuned else []), (wanted, question)
    lookup, _, _ = make_lookup(TOY)
    assert lookup.find(ProblemOfKey(GEMM)) is MissReason.NOT_IN_TABLE
    # Where a winner of another kind would change the missed key, the neutral one is taken.
    assert make_lookup(GEMM)[0].find(ProblemOfKey(PAD)) == AS_IS


def test_a_region_may_ask_by_another_key_of_its_product(make_lookup: Make) -> None:
    """In the region of a pad key an operand may be no longer free: that key has the way as row."""
    lookup, _, _ = make_lookup(f"{PAD} free=a")
    lookup.rows = {PAD: Row(PADDED, make_row().evidence)}
    assert (lookup.find(ProblemOfKey(PAD)), lookup.others) == (PADDED, [])
    other = PAD.replace("k=64", "k=63")
    assert lookup.find(ProblemOfKey(other)) is MissReason.NOT_IN_TABLE
    assert lookup.others == [other]


def test_an_import_measures_its_configs_and_all_library_kernels(make_lookup: Make) -> None:
    named, other = (
        Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", size), ("num_warps", 4)))
        for size in (16, 32)
    )
    bias = Winner(Family.EXTERN, "aten::bias_addmm")
    imported = (replace(named, kwargs=named.kwargs[:1]),)
    lookup, _, asked = make_lookup(GEMM, search=Search.IMPORTED, named=imported)
    candidates = tuple(map(Candidate, (LIBRARY, bias, named, other)))
    lookup.measure(replace(question_of(GEMM), candidates=candidates))
    (question,) = asked
    assert isinstance(question, GemmQuestion)
    assert [one.winner for one in question.candidates] == [LIBRARY, bias, named]


def test_a_dry_run_of_misses_compiles_and_writes_nothing(tmp_path: Path) -> None:
    """Each missed key once; the table is not made."""
    misses = tmp_path / "misses.json"
    misses.write_text(encode_problems({(GEMM, "not_in_table"): 3}, ()))
    options = BuildOptions(device="cpu", dry_run=True)
    out = tmp_path / "new" / "t.json"
    source, runner = ProblemsSource(misses), ThisProcess()
    report = build(BuildRequest(source=source, runner=runner, out=out, options=options))
    assert report.plan is not None
    assert (report.plan.known, report.plan.missing, report.buckets) == ((), (GEMM,), ())
    assert [*tmp_path.iterdir()] == [misses]
