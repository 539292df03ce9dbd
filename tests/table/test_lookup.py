"""Lookups: each emits one event, a miss says why, and a range answers for itself alone."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable

import pytest
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.device import Mismatch, compare_runtimes
from warmup.core.errors import (
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
    FrameSkipped,
    GraphLoaded,
    GraphsRecorded,
    Hit,
    Missed,
    Overruled,
    Scheduled,
    Selected,
    WeightChanged,
)
from warmup.core.rows import Winner
from warmup.core.trial import Tuned
from warmup.keys.kind import Kind, Linear, ProblemOfKey
from warmup.keys.question import CallsQuestion, Question
from warmup.table.lookup import Lookup, cache_tag
from warmup.table.schema import OnMiss, Uncovered

Lookups = Callable[..., tuple[Lookup, list[Event]]]
HARD_DEVICE = Mismatch("device.sm_count", "132", "78", is_hard=True)
HARD_TORCH = Mismatch("torch minor", "2.13", "2.14", is_hard=True)
SOFT = Mismatch("driver", "580", "581", is_hard=False)


def make_lookup(
    on_miss: OnMiss = OnMiss.FALLBACK,
    *mismatches: Mismatch,
    on_uncovered: Uncovered = Uncovered.LIBRARY,
    on_tuned: Callable[[Tuned], None] | None = None,
    tuned: Tuned | None = None,
    measures: bool = False,
) -> tuple[Lookup, list[Event]]:
    """``make_lookup(OnMiss.STRICT)``: a lookup over two rows, and the events it emits."""
    events: list[Event] = []
    emitter = Emitter([events.append])
    rows = make_table().rows
    tuner = _Finished(tuned) if measures or tuned else None
    lookup = Lookup(rows, on_miss, emitter, mismatches, on_uncovered, tuner, on_tuned)
    return lookup, events


def find(lookup: Lookup, key: str) -> Winner | MissReason:
    return lookup.find(ProblemOfKey(key))


class _Finished:
    """A tuner with a given result."""

    def __init__(self, result: Tuned | None) -> None:
        self._result = result

    def measure(self, question: Question) -> Tuned | None:
        return self._result

    def close(self) -> None:
        pass


def test_a_known_key_is_answered_with_its_winner() -> None:
    lookup, _ = make_lookup()
    assert find(lookup, make_key(560)) == make_table().rows[make_key(560)].winner
    # Finding emits nothing.
    lookup, events = make_lookup()
    find(lookup, make_key(560))
    find(lookup, make_key(7))
    assert events == []


def test_a_kind_says_which_ingredients_are_ranges(toy_kind: Kind) -> None:
    for m, reason in (("8", MissReason.NOT_IN_TABLE), ("1..8", MissReason.DYNAMIC_DIM)):
        lookup, _ = make_lookup()
        assert find(lookup, f"toy cat m={m} n=4 via=sum f32 tag=7") is reason


def test_a_soft_mismatch_changes_no_answer() -> None:
    """With another driver the rows are still used."""
    lookup, _ = make_lookup(OnMiss.FALLBACK, SOFT)
    assert find(lookup, make_key(560)) == make_table().rows[make_key(560)].winner
    # What compare_runtimes finds between table and machine becomes the reason.
    for changes, reason in (
        ({"arch": "sm_100"}, MissReason.WRONG_DEVICE),
        ({"triton": "3.8.0"}, MissReason.WRONG_RUNTIME),
    ):
        mismatches = compare_runtimes(make_runtime(), make_runtime(**changes))
        lookup, _ = make_lookup(OnMiss.FALLBACK, *mismatches)
        assert find(lookup, make_key(560)) is reason, changes


def test_a_range_is_answered_by_its_own_row_alone() -> None:
    """A key with a range misses as ``dynamic_dim``, one without as ``not_in_table``."""
    lookup = Lookup({make_key("257..560"): make_row()}, OnMiss.FALLBACK, Emitter([]))
    assert find(lookup, make_key("257..560")) == make_row().winner
    for m in ("257..559", "258..560", "257..1024", "2..560", "257..", "561..1024"):
        assert find(lookup, make_key(m)) is MissReason.DYNAMIC_DIM, m
    for m in (257, 408, 560):  # a static graph asks for a single size, which is another key
        assert find(lookup, make_key(m)) is MissReason.NOT_IN_TABLE, m
    assert find(lookup, make_key(560, n="8..64")) is MissReason.DYNAMIC_DIM
    assert find(lookup, "conv 3x3") is MissReason.NOT_DESCRIBED


WINNER = make_table().rows[make_key(560)].winner
MISS = Missed(make_key(600), MissReason.NOT_IN_TABLE, "bias_addmm")
NEAREST = {"nearest": make_key(560), "differs": ["m: row 560, here 600"]}
BENCHMARK = Benchmarked("conv.py:tuned_conv")
TAGS = cache_tag("a" * 64, tunes=True), cache_tag("b" * 64)
FOREIGN = ForeignGraph(cache_tag("a" * 64), cache_tag("b" * 64))
CHANGE = WeightChanged("self.fc.weight", 2, "forward (m.py:3)")
DIGESTS = {"compiled_under": "a" * 16, "installed": "b" * 16}


def test_each_report_is_one_event_with_its_fields() -> None:
    """Digests are as short as in every event; what follows them says how a table was installed."""
    key = make_key(560)
    missed = {"kind": "gemm", "key": make_key(600), "reason": "not_in_table", **NEAREST}
    changed = {"weight": CHANGE.weight, "changed": 2, "frame": CHANGE.frame, "refused": False}
    tuned = {**DIGESTS, "compiled_under": "a" * 16 + "-tune", "refused": False}
    untagged = {**DIGESTS, "compiled_under": None, "refused": False}
    for report, name, fields in (
        (Hit(key, str(WINNER)), EventName.HIT, {"kind": "gemm", "key": key, "winner": str(WINNER)}),
        (MISS, EventName.MISSED, {**missed, "choice": "bias_addmm"}),
        (
            BENCHMARK,
            EventName.UNCOVERED,
            {"site": BENCHMARK.site, "refused": False, "choice": None},
        ),
        (ForeignGraph(*TAGS), EventName.FOREIGN, tuned),
        (ForeignGraph(None, TAGS[1]), EventName.FOREIGN, untagged),
        (GraphLoaded(3, 1), EventName.CACHED, {"decisions": 3, "misses": 1}),
        (FrameSkipped("f", "no"), EventName.UNCOMPILED, {"frame": "f", "reason": "no"}),
        (CHANGE, EventName.CHANGED, changed),
    ):
        lookup, events = make_lookup()
        lookup.emit(report)
        assert [(one.name, dict(one.fields)) for one in events] == [(name, fields)], report
    # CUDA graphs contradict no table without winners for the host; a benchmark of a kind is
    # uncovered where it makes no row.
    for on_miss in OnMiss:
        lookup, events = make_lookup(on_miss)
        lookup.emit(GraphsRecorded())
        lookup.emit(Benchmarked("select:mm"))
        assert [event.fields["site"] for event in events] == ["select:mm"], on_miss


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


def test_a_miss_names_its_nearest_row_if_any() -> None:
    """When the table has no row for the op, there is no nearest row."""
    lookup, _ = make_lookup(OnMiss.STRICT)
    with pytest.raises(MissError) as caught:
        lookup.emit(Missed(make_key(op="bmm"), MissReason.NOT_IN_TABLE, "bmm"))
    assert (caught.value.nearest, caught.value.differs) == (None, ())
    # A miss on another device names the hard fields.
    lookup, _ = make_lookup(OnMiss.STRICT, HARD_DEVICE, SOFT)
    with pytest.raises(MissError) as caught:
        lookup.emit(Missed(make_key(560), MissReason.WRONG_DEVICE, "bias_addmm"))
    assert caught.value.differs == ("device.sm_count: table 132, here 78",)
    # A rejected choice names the row of the very key, and its winner.
    lookup, events = make_lookup()
    lookup.emit(Missed(make_key(560), MissReason.CHOICE_REJECTED, "bias_addmm"))
    assert events[0].fields["nearest"] == make_key(560)
    # A problem without a key is a miss without nearest row, whatever its text.
    lookup, events = make_lookup()
    lookup.emit(Missed("conv 3x3", MissReason.NOT_DESCRIBED, "conv"))
    assert (events[0].fields["nearest"], events[0].fields["differs"]) == (None, [])


def test_a_tuned_problem_is_answered_before_the_tables() -> None:
    """A row measured in this process is used, also when the table is for another device."""
    for case, mismatches in {"here": (), "wrong-device": (HARD_DEVICE,)}.items():
        row = make_row(BLOCK_M=7)
        lookup, _ = make_lookup(OnMiss.FALLBACK, *mismatches, tuned=Tuned(make_key(7), row, ()))
        assert (
            lookup.measure(CallsQuestion(ProblemOfKey(make_key(7)), row.winner, {})) == row.winner
        ), case
        assert find(lookup, make_key(7)) == row.winner, case
    # A key tuned again is answered with the new winner.
    row = make_row(BLOCK_M=7)
    lookup, _ = make_lookup(OnMiss.FALLBACK, tuned=Tuned(make_key(560), row, ()))
    lookup.measure(CallsQuestion(ProblemOfKey(make_key(560)), row.winner, {}))
    assert find(lookup, make_key(560)) == row.winner


def test_a_problem_that_could_not_be_measured_has_no_answer() -> None:
    """Without a result there is no winner, no event and no row."""
    lookup, events = make_lookup(measures=True)
    found = lookup.measure(CallsQuestion(ProblemOfKey(make_key(7)), make_row().winner, {}))
    assert (found, events, find(lookup, make_key(7))) == (None, [], MissReason.NOT_IN_TABLE)


def test_a_selection_of_no_kind_takes_the_library_unless_told_otherwise() -> None:
    """``library`` reports the site and the choice; else the measurement reports itself."""
    for word, reported in ((Uncovered.LIBRARY, 1), (Uncovered.MEASURE, 0), (Uncovered.FORBID, 0)):
        lookup, events = make_lookup(on_uncovered=word)
        takes_library = lookup.settings.takes_library
        choice = "aten::qlinear" if takes_library else None
        lookup.emit(Selected("select:qlinear_unary", choice))
        assert (takes_library, len(events)) == (bool(reported), reported), word
    lookup, events = make_lookup()
    lookup.emit(Selected("select:qlinear_unary", "aten::qlinear"))
    wanted = {"site": "select:qlinear_unary", "refused": False, "choice": "aten::qlinear"}
    assert [(event.name, dict(event.fields)) for event in events] == [(EventName.UNCOVERED, wanted)]


def test_a_selection_that_tunes_is_not_uncovered() -> None:
    """A measurement that becomes a row is not uncovered where questions are measured."""
    lookup, events = make_lookup(measures=True)
    for site in ("select:mm", "launch", "pad"):
        lookup.emit(Benchmarked(site))
    lookup.emit(Benchmarked("conv.py:tuned_conv"))
    assert [event.fields["site"] for event in events] == ["conv.py:tuned_conv"]


def test_an_overruled_option_is_one_event() -> None:
    """A switch of the caller's that the table replaces is one event, without a warning."""
    lookup, events = make_lookup()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            lookup.emit(Overruled("coordinate_descent_tuning", "False", "True"))
    assert [(event.name, dict(event.fields)) for event in events] == [
        (
            EventName.OVERRULED,
            {"option": "coordinate_descent_tuning", "table": "False", "found": "True"},
        )
    ]


def test_a_contradiction_is_reported_once() -> None:
    """The same option contradicted from many threads is one event and one warning."""
    lookup, events = make_lookup()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        threads = [
            threading.Thread(target=lookup.emit, args=(Contradicted("freezing", "True", "False"),))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(events), len(warned)) == (1, 1)


def test_a_fusion_that_differs_from_the_row_is_reported_once() -> None:
    """What is fused as the row says is no event; else one event and warning for each key."""
    lookup, events = make_lookup()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        lookup.emit(Scheduled("mm 1", False, False))
        for key in ("mm 1", "mm 1", "mm 2"):
            lookup.emit(Scheduled(key, True, False))
    assert [(event.name, dict(event.fields)) for event in events] == [
        (
            EventName.CONTRADICTED,
            {"option": f"fusion of {key}", "expected": "fused", "found": "not fused"},
        )
        for key in ("mm 1", "mm 2")
    ]
    assert [str(one.message).partition(":")[0] for one in warned] == ["mm 1", "mm 2"]


def test_a_contradiction_ends_no_compile_even_when_warnings_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The event is emitted, and the text goes to stderr instead of into an exception."""
    lookup, events = make_lookup()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lookup.emit(Contradicted("freezing", "True", "False"))
    assert dataclasses.astuple(events[0])[0] is EventName.CONTRADICTED
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
