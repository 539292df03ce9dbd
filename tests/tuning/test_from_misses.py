"""Tuning one missed key with a rebuilt module, and the plan of a dry run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import make_row

from warmup.cli.build_render import spell_graphs
from warmup.core.errors import MissReason
from warmup.core.events import Emitter, Event, EventName, Uncompiled
from warmup.core.method import Search
from warmup.core.rows import Family, Row, Tuned, Winner
from warmup.core.trial import Candidate
from warmup.keys.gemm import GemmProblem
from warmup.keys.kind import Kind, ProblemOfKey
from warmup.keys.pad import AS_IS, PADDED
from warmup.keys.question import CallsQuestion, GemmQuestion, Question
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.tuning.build import ThisProcess, build
from warmup.tuning.problems import OneKeyLookup, ProblemsSource
from warmup.tuning.request import BuildOptions, BuildRequest

MakeLookup = Callable[[str], tuple[Lookup, list[Event]]]
GEMM = "mm m=16 n=96 k=64 f32 a=row b=row out=f32 | epilogue=none"
PAD = "pad mm m=16 n=96 k=64 f32 a=row b=row"
TOY = "toy cat m=8 n=4 via=sum f32 tag=7"
LIBRARY = Winner(Family.EXTERN, "aten::mm")


@pytest.fixture
def make_lookup(toy_kind: Kind) -> MakeLookup:
    """``make_lookup(TOY)``: what answers while that key is tuned, and the events it emits."""

    class Measurer:
        def measure(self, question: Question) -> Tuned | None:
            return Tuned(question.problem.key, make_row(), ())

        def close(self) -> None:
            pass

    def make(wanted: str) -> tuple[Lookup, list[Event]]:
        events: list[Event] = []
        emitter = Emitter([events.append])
        lookup = OneKeyLookup({}, OnMiss.FALLBACK, emitter, tuner=Measurer(), wanted=wanted)
        return lookup, events

    return make


def question_of(key: str) -> GemmQuestion:
    return GemmQuestion(GemmProblem.of_key(key), "cpu", (), library=LIBRARY)


def test_the_missed_key_is_tuned(make_lookup: MakeLookup) -> None:
    lookup, events = make_lookup(GEMM)
    assert lookup.measure(question_of(GEMM)) != LIBRARY
    assert [(event.name, event.fields["key"]) for event in events] == [(EventName.TUNED, GEMM)]


def test_what_is_beside_the_missed_key_is_not_measured(make_lookup: MakeLookup) -> None:
    """A product in the module of another kind's key keeps the library's kernel, and has no row."""
    lookup, events = make_lookup(TOY)
    assert lookup.find(ProblemOfKey(GEMM)) is MissReason.NOT_IN_TABLE
    assert (lookup.measure(question_of(GEMM)), events) == (LIBRARY, [])
    # A decision of another kind keeps its library default, and has no row.
    lookup, events = make_lookup(GEMM)
    question = CallsQuestion(ProblemOfKey(TOY), LIBRARY, {})
    assert (lookup.measure(question), events) == (LIBRARY, [])


def test_another_kind_takes_its_neutral_winner(make_lookup: MakeLookup) -> None:
    """Where a winner of another kind would change the missed key, the neutral one is taken."""
    lookup, _ = make_lookup(GEMM)
    assert lookup.find(ProblemOfKey(PAD)) == AS_IS


def test_another_key_of_the_kind_ends_the_tuning(make_lookup: MakeLookup) -> None:
    lookup, _ = make_lookup(TOY)
    question = CallsQuestion(ProblemOfKey(TOY), LIBRARY, {})
    lookup.find(ProblemOfKey(TOY))
    assert lookup.measure(question) != LIBRARY
    lookup.find(ProblemOfKey(TOY.replace("m=8", "m=9")))
    assert lookup.measure(question) == LIBRARY


def test_a_gemm_of_a_way_is_tuned(make_lookup: MakeLookup) -> None:
    """The ways of a pad key are timed with tuned products: their keys get rows too."""
    lookup, events = make_lookup(PAD)
    assert lookup.measure(question_of(GEMM)) != LIBRARY
    assert [(event.name, event.fields["key"]) for event in events] == [(EventName.TUNED, GEMM)]


def test_a_region_may_ask_by_another_key_of_its_product(make_lookup: MakeLookup) -> None:
    """In the region of a pad key an operand may be no longer free: that key has the way as row."""
    lookup, _ = make_lookup(f"{PAD} free=a")
    lookup.rows = {PAD: Row(PADDED, make_row().evidence)}
    assert isinstance(lookup, OneKeyLookup)
    assert (lookup.find(ProblemOfKey(PAD)), lookup.others) == (PADDED, [])
    other = PAD.replace("k=64", "k=63")
    assert lookup.find(ProblemOfKey(other)) is MissReason.NOT_IN_TABLE
    assert lookup.others == [other]


def test_an_import_measures_its_configs_and_all_library_kernels() -> None:
    asked: list[GemmQuestion] = []

    class Keeping:
        def measure(self, question: Question) -> Tuned | None:
            assert isinstance(question, GemmQuestion)
            asked.append(question)
            return Tuned(question.problem.key, make_row(), ())

    tiles = [
        Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", size), ("num_warps", 4)))
        for size in (16, 32)
    ]
    bias = Winner(Family.EXTERN, "aten::bias_addmm")
    lookup = OneKeyLookup(
        {},
        OnMiss.FALLBACK,
        Emitter([]),
        tuner=Keeping(),  # type: ignore[arg-type]  # what is asked of it
        search=Search.IMPORTED,
        wanted=GEMM,
        named=(Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),)),),
    )
    candidates = tuple(map(Candidate, (LIBRARY, bias, *tiles)))
    lookup.measure(replace(question_of(GEMM), candidates=candidates))
    assert [one.winner for one in asked[0].candidates] == [LIBRARY, bias, tiles[0]]


def test_one_graph_needs_no_words() -> None:
    """Several do: what their branches leave out."""
    assert list(spell_graphs("seqlen=8", 1, Uncompiled())) == []
    left = Uncompiled(("f (m.py:3): no",), 2)
    line, *rest = spell_graphs("seqlen=8", 3, left)
    assert line.startswith("seqlen=8: the model breaks into 3 graphs; branches that these inputs")
    assert rest[0] == "seqlen=8: uncompiled: f (m.py:3): no"
    assert rest[1].startswith("seqlen=8: matmuls that a call runs outside any graph")


def test_a_dry_run_of_misses_compiles_and_writes_nothing(tmp_path: Path) -> None:
    """Each missed key once; the table is not made."""
    key = "mm m=16 n=96 k=64 f32 a=row b=row out=f32 | epilogue=none"
    problem = {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 3}
    document = {"schema": 1, "digests": [], "problems": [problem]}
    (tmp_path / "misses.json").write_text(json.dumps(document))
    out = tmp_path / "new" / "t.json"
    request = BuildRequest(
        source=ProblemsSource(tmp_path / "misses.json"),
        runner=ThisProcess(),
        out=out,
        options=BuildOptions(device="cpu", dry_run=True),
    )
    report = build(request)
    assert report.plan is not None
    assert (report.plan.known, report.plan.missing, report.buckets) == ((), (key,), ())
    assert [path.name for path in tmp_path.iterdir()] == ["misses.json"]
