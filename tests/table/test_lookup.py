"""Lookups: each emits one event, a miss says why, and a range answers for itself alone."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.device import Mismatch, compare_runtimes
from warmup.core.errors import (
    ContradictionWarning,
    ForeignGraphError,
    MissError,
    MissReason,
    UncoveredError,
    WeightChangedError,
)
from warmup.core.events import (
    Benchmarked,
    Contradicted,
    Emitter,
    Event,
    EventName,
    ForeignGraph,
    GraphLoaded,
    Missed,
    Scheduled,
    WeightChanged,
)
from warmup.core.rows import Winner
from warmup.core.trial import Tuned
from warmup.keys.kind import Kind, Linear, ProblemOfKey
from warmup.keys.question import CallsQuestion, Question
from warmup.table.lookup import Lookup, cache_tag
from warmup.table.schema import OnMiss, Uncovered

HARD_DEVICE = Mismatch("device.sm_count", "132", "78", is_hard=True)
HARD_TORCH = Mismatch("torch minor", "2.13", "2.14", is_hard=True)
SOFT = Mismatch("driver", "580", "581", is_hard=False)


class _Finished:
    def __init__(self, result: Tuned | None) -> None:
        self._result = result

    def measure(self, question: Question) -> Tuned | None:
        return self._result

    def close(self) -> None:
        pass


def make_lookup(
    on_miss: OnMiss = OnMiss.FALLBACK, *mismatches: Mismatch, **fields: Any
) -> tuple[Lookup, list[Event]]:
    """``make_lookup(OnMiss.STRICT)``: a lookup over two rows, and the events it emits."""
    events: list[Event] = []
    emitter = Emitter([events.append])
    return Lookup(make_table().rows, on_miss, emitter, mismatches, **fields), events


def find(lookup: Lookup, key: str) -> Winner | MissReason:
    return lookup.find(ProblemOfKey(key))


def fields_of(events: list[Event], name: EventName) -> list[dict[str, object]]:
    """Return the fields of *events*, all of which have the *name*."""
    assert {event.name for event in events} <= {name}
    return [dict(event.fields) for event in events]


def test_a_known_key_is_answered_with_its_winner_and_without_an_event() -> None:
    """With another driver too; on another device or runtime all keys miss for that reason."""
    for mismatches, reason in (
        ((), None),
        ((SOFT,), None),
        ((HARD_DEVICE,), MissReason.WRONG_DEVICE),
        ((HARD_TORCH,), MissReason.WRONG_RUNTIME),
        ((SOFT, HARD_TORCH, HARD_DEVICE), MissReason.WRONG_DEVICE),
        (compare_runtimes(make_runtime(), make_runtime(arch="sm_100")), MissReason.WRONG_DEVICE),
        (compare_runtimes(make_runtime(), make_runtime(triton="3.8.0")), MissReason.WRONG_RUNTIME),
    ):
        lookup, events = make_lookup(OnMiss.FALLBACK, *mismatches)
        for m, answer in (
            (560, make_table().rows[make_key(560)].winner),
            (7, MissReason.NOT_IN_TABLE),
            ("1..", MissReason.DYNAMIC_DIM),
        ):
            assert find(lookup, make_key(m)) == (reason or answer), (mismatches, m)
        assert events == []


def test_a_range_is_answered_by_its_own_row_alone(toy_kind: Kind) -> None:
    """A key with a range misses as ``dynamic_dim``, a key without as ``not_in_table``."""
    lookup = Lookup({make_key("257..560"): make_row()}, OnMiss.FALLBACK, Emitter([]))
    assert find(lookup, make_key("257..560")) == make_row().winner
    for m in ("257..559", "258..560", "257..1024", "2..560", "257..", "561..1024"):
        assert find(lookup, make_key(m)) is MissReason.DYNAMIC_DIM, m
    for m in (257, 408, 560):  # a static graph asks for a single size, which is another key
        assert find(lookup, make_key(m)) is MissReason.NOT_IN_TABLE, m
    assert find(lookup, make_key(560, n="8..64")) is MissReason.DYNAMIC_DIM
    assert find(lookup, "conv 3x3") is MissReason.NOT_DESCRIBED
    for size, reason in (("8", MissReason.NOT_IN_TABLE), ("1..8", MissReason.DYNAMIC_DIM)):
        assert find(lookup, f"toy cat m={size} n=4 via=sum f32 tag=7") is reason


WINNER = make_table().rows[make_key(560)].winner
MISS = Missed(make_key(600), MissReason.NOT_IN_TABLE, "bias_addmm")
BENCHMARK = Benchmarked("conv.py:tuned_conv")
FOREIGN = ForeignGraph(cache_tag("a" * 64), cache_tag("b" * 64))
CHANGE = WeightChanged("self.fc.weight", 2, "forward (m.py:3)")


def test_what_strict_and_forbid_refuse_is_an_event_and_an_error() -> None:
    """The event is emitted before the error, once, and nothing is compiled instead."""
    strict, forbid = (OnMiss.STRICT, Uncovered.LIBRARY), (OnMiss.FALLBACK, Uncovered.FORBID)
    foreign = ForeignGraphError, r"table a{16}, and table b{16} is installed"
    for (on_miss, uncovered), report, (error, said), fields in (
        (strict, MISS, (MissError, "not_in_table"), {"choice": None}),
        (strict, GraphLoaded(3, 1), (MissError, r"1 decision of a graph .* \(cached_miss\)"), {}),
        (strict, CHANGE, (WeightChangedError, "self.fc.weight"), {"refused": True}),
        (strict, FOREIGN, foreign, {"refused": True}),
        (forbid, FOREIGN, foreign, {"refused": True}),
        (forbid, BENCHMARK, (UncoveredError, r"site conv\.py:tuned_conv"), {"refused": True}),
    ):
        lookup, events = make_lookup(on_miss, on_uncovered=uncovered)
        with pytest.raises(error, match=said):
            lookup.emit(report)
        (event,) = events
        assert fields.items() <= dict(event.fields).items(), report
    lookup, events = make_lookup(OnMiss.STRICT)
    lookup.emit(GraphLoaded(3, 0))
    assert [event.name for event in events] == [EventName.CACHED]


def test_a_miss_says_what_differs_from_the_nearest_row_if_any() -> None:
    """In the event and in the error of strict serving."""
    asked, known = make_key(1030, epilogue="relu"), make_key(560)
    differs = ("m: row 1024, here 1030", "epilogue: row none, here relu")
    wrong = ("device.sm_count: table 132, here 78",)
    rejected = (f"choice: row {WINNER}, not built by this torch here",)
    for key, reason, nearest, expected in (
        (asked, MissReason.NOT_IN_TABLE, make_key(1024), differs),
        (make_key(op="bmm"), MissReason.NOT_IN_TABLE, None, ()),
        (known, MissReason.WRONG_DEVICE, known, wrong),
        (known, MissReason.CHOICE_REJECTED, known, rejected),
        ("conv 3x3", MissReason.NOT_DESCRIBED, None, ()),
    ):
        mismatches = (HARD_DEVICE, SOFT) if reason is MissReason.WRONG_DEVICE else ()
        lookup, events = make_lookup(OnMiss.STRICT, *mismatches)
        with pytest.raises(MissError) as caught:
            lookup.emit(Missed(key, reason, "bias_addmm"))
        error = caught.value
        assert (error.key, error.reason, error.nearest) == (key, reason.value, nearest)
        assert error.differs == expected, key
        (fields,) = fields_of(events, EventName.MISSED)
        assert (fields["nearest"], fields["differs"]) == (nearest, [*expected])


def test_a_row_measured_in_this_process_goes_before_the_table() -> None:
    """Also when the table is for another device; it is one event and reaches the builder once."""
    row = make_row(BLOCK_M=7)
    for m, mismatches in ((7, ()), (560, ()), (7, (HARD_DEVICE,))):
        handed: list[Tuned] = []
        tuned, problem = Tuned(make_key(m), row, ()), ProblemOfKey(make_key(m))
        lookup, events = make_lookup(
            OnMiss.FALLBACK, *mismatches, tuner=_Finished(tuned), on_tuned=handed.append
        )
        assert lookup.settings.measures
        assert lookup.measure(CallsQuestion(problem, row.winner, {})) == row.winner
        assert lookup.find(problem) == row.winner, (m, mismatches)
        assert (len(fields_of(events, EventName.TUNED)), handed) == (1, [tuned])


def test_a_problem_that_could_not_be_measured_has_no_answer() -> None:
    lookup, events = make_lookup(tuner=_Finished(None))
    found = lookup.measure(CallsQuestion(ProblemOfKey(make_key(7)), make_row().winner, {}))
    assert (found, events, find(lookup, make_key(7))) == (None, [], MissReason.NOT_IN_TABLE)


def test_a_contradiction_is_one_event_and_one_warning() -> None:
    """From however many threads; a fusion that is as the row says is none."""
    lookup, events = make_lookup()
    freezing = Contradicted("freezing", "True", "False")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=lookup.emit, args=(freezing,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lookup.emit(Scheduled("mm 1", False, False))
        for key in ("mm 1", "mm 1", "mm 2"):
            lookup.emit(Scheduled(key, True, False))
    fused = {"expected": "fused", "found": "not fused"}
    assert fields_of(events, EventName.CONTRADICTED) == [
        {"option": "freezing", "expected": "True", "found": "False"},
        {"option": "fusion of mm 1", **fused},
        {"option": "fusion of mm 2", **fused},
    ]
    first, *others = (str(each.message) for each in warned)
    assert first.startswith("inductor option freezing is False here, the table was built with True")
    assert [text.partition(":")[0] for text in others] == ["mm 1", "mm 2"]
    assert {each.category for each in warned} == {ContradictionWarning}


def test_a_contradiction_ends_no_compile_even_when_warnings_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The event is emitted, and the text goes to stderr instead of into an exception."""
    lookup, events = make_lookup()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lookup.emit(Contradicted("freezing", "True", "False"))
    assert len(fields_of(events, EventName.CONTRADICTED)) == 1
    assert capsys.readouterr().err.startswith("warmup: inductor option freezing is False here")


def test_a_linear_whose_row_is_for_a_frozen_weight_is_a_miss() -> None:
    """It has the sizes, the dtype and, where the key says so, the bias of the row."""
    row = next(iter(make_table().rows.values()))
    packed = "packed_linear m=16 n=8 k=4 f32 a=row b=packed out=f32 fp32=ieee | epilogue=none"
    biased = "linear_unary m=16 n=8 k=4 bf16 a=row b=packed bias=1d out=bf16 | epilogue=relu"
    doubted = "packed_linear m=2 n=8 k=4 f32 a=row b=packed out=f32 fp32=ieee | epilogue=none"
    rows = {packed: row, biased: row, doubted: dataclasses.replace(row, untrusted="wrong")}
    for linear, key in (
        (Linear(16, 8, 4, "f32", has_bias=False), packed),
        (Linear(16, 8, 4, "f32", has_bias=True), packed),
        (Linear(16, 8, 4, "bf16", has_bias=True), biased),
        (Linear(16, 8, 4, "bf16", has_bias=False), None),
        (Linear(16, 8, 4, "f16", has_bias=True), None),
        (Linear(16, 4, 8, "f32", has_bias=False), None),
        (Linear(None, 8, 4, "f32", has_bias=False), None),
        (Linear(2, 8, 4, "f32", has_bias=False), None),
    ):
        events: list[Event] = []
        Lookup(rows, OnMiss.FALLBACK, Emitter([events.append])).needs_freezing([linear])
        missed = [(each.fields["key"], each.fields["reason"]) for each in events]
        assert missed == ([(key, "needs_freezing")] if key else []), linear
    strict = Lookup(rows, OnMiss.STRICT, Emitter([]))
    with pytest.raises(MissError, match="differs in weight: row frozen, here not"):
        strict.needs_freezing([Linear(16, 8, 4, "f32", has_bias=False)])
