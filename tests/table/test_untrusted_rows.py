"""Rows that a build does not trust: kept with their evidence and the reason, and never served."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from sample_tables import make_row, make_table

from warmup.cli.tables import spell_difference, spell_table
from warmup.core.errors import MissError, MissReason, TableFormatError
from warmup.core.events import Emitter, Event, Missed
from warmup.core.rows import Row, Winner
from warmup.core.trial import Candidate, Tuned
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import CallsQuestion, GemmQuestion, Question
from warmup.keys.registry import neighbours_of
from warmup.table.codec import decode, digest_of, encode
from warmup.table.lookup import Lookup
from warmup.table.merge import combine, diff, merge
from warmup.table.schema import OnMiss
from warmup.table.store import TableWriter, read, write

WHY = "bucket seqlen=16: with it the output was 3.2e-01 away from float32 eager"
KEY = "mm m=16 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"
OTHER = KEY.replace("m=16", "m=32")


@pytest.fixture
def marked() -> Row:
    return dataclasses.replace(make_row("mm_wrong", 5.0, BLOCK_M=32), untrusted=WHY)


class _Measurer:
    """A tuner that keeps what it is asked."""

    def __init__(self, row: Row) -> None:
        self.offered: list[list[Winner]] = []
        self._row = row

    def measure(self, question: Question) -> Tuned | None:
        assert isinstance(question, GemmQuestion | CallsQuestion)
        is_gemm = isinstance(question, GemmQuestion)
        offered = [one.winner for one in question.candidates] if is_gemm else [*question.calls]
        self.offered.append(offered)
        return Tuned(question.problem.key, self._row, ())

    def close(self) -> None:
        pass


def test_a_marked_row_is_written_with_its_reason_and_evidence(marked: Row) -> None:
    table = make_table({KEY: marked})
    assert decode(encode(table), "t.json") == table
    row = json.loads(encode(table))["rows"]["gemm"][KEY]
    assert row.pop("untrusted") == WHY
    trusted = make_table({KEY: dataclasses.replace(marked, untrusted=None)})
    assert row == json.loads(encode(trusted))["rows"]["gemm"][KEY]
    assert digest_of(table) != digest_of(trusted)


@pytest.mark.parametrize("value", [None, 5, "a\nb", "x" * 513])
def test_a_mark_that_is_no_short_text_is_refused(marked: Row, value: object) -> None:
    document = json.loads(encode(make_table({KEY: marked})))
    document["rows"]["gemm"][KEY]["untrusted"] = value
    with pytest.raises(TableFormatError, match="untrusted"):
        decode(json.dumps(document), "t.json")


def test_a_long_reason_is_cut(marked: Row) -> None:
    """A table that a build has written can always be read back."""
    table = make_table({KEY: dataclasses.replace(marked, untrusted="x" * 600)})
    assert decode(encode(table), "t.json").rows[KEY].untrusted == "x" * 512


def test_a_marked_row_is_a_counted_miss_with_its_own_reason(marked: Row) -> None:
    """The event names the row and why it is not served."""
    events: list[Event] = []
    lookup = Lookup({KEY: marked}, OnMiss.FALLBACK, Emitter([events.append]))
    assert lookup.find(GemmProblem.of_key(KEY)) is MissReason.UNTRUSTED
    lookup.emit(Missed(KEY, MissReason.UNTRUSTED, "aten::mm"))
    fields = events[0].fields
    assert (fields["reason"], fields["nearest"]) == ("untrusted", KEY)
    assert fields["differs"] == [f"row mm_wrong(BLOCK_M=32), not trusted: {WHY}"]


def test_strict_serving_refuses_a_marked_row_unless_excused(marked: Row) -> None:
    """A build excuses the rows that it has just marked: it serves the bucket without them."""
    strict = Lookup({KEY: marked}, OnMiss.STRICT, Emitter([]))
    with pytest.raises(MissError, match="untrusted"):
        strict.emit(Missed(KEY, MissReason.UNTRUSTED, "aten::mm"))
    excused = dataclasses.replace(strict, excused={KEY})
    excused.emit(Missed(KEY, MissReason.UNTRUSTED, "aten::mm"))


@pytest.mark.parametrize("is_library", [False, True])
def test_a_marked_key_is_measured_without_its_winner(marked: Row, *, is_library: bool) -> None:
    """The library's kernel stays even if it is marked: it is what all others are measured by."""
    good = make_row("mm_good")
    library = marked.winner if is_library else make_row("mm_library").winner
    winners = [library, marked.winner, good.winner]
    offered = [library, good.winner]
    tuner = _Measurer(good)
    lookup = Lookup({KEY: marked}, OnMiss.FALLBACK, Emitter([]), tuner=tuner)
    problem = GemmProblem.of_key(KEY)
    if is_library:
        offered = winners
    lookup.measure(GemmQuestion(problem, "cpu", tuple(map(Candidate, winners)), library=library))
    lookup = dataclasses.replace(lookup, _tuned_rows={})
    calls = dict.fromkeys(winners, lambda _number: None)
    lookup.measure(CallsQuestion(problem, library, calls))
    assert tuner.offered == [offered, [*dict.fromkeys(offered)]]
    assert lookup.find(problem) == good.winner


def test_an_excused_key_is_not_measured(marked: Row) -> None:
    """What a build has marked it does not measure again: the next build does."""
    tuner = _Measurer(make_row())
    lookup = Lookup({KEY: marked}, OnMiss.FALLBACK, Emitter([]), tuner=tuner, excused={KEY})
    problem, library = GemmProblem.of_key(KEY), make_row().winner
    assert lookup.measure(GemmQuestion(problem, "cpu", (), library=library)) is None
    assert lookup.measure(CallsQuestion(problem, library, {})) is None
    assert tuner.offered == []


def test_a_marked_winner_is_no_neighbour(marked: Row) -> None:
    """A search does not start from a kernel that was wrong."""
    rows = {OTHER: marked, KEY.replace("m=16", "m=64"): make_row("mm_good", BLOCK_M=64)}
    assert [winner.uid for winner in neighbours_of(KEY, rows)] == ["mm_good"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("same", "taken"), [(True, "mm_wrong"), (False, "mm_good")])
def test_a_union_takes_another_winner_and_keeps_the_mark_of_the_same(
    marked: Row, *, swapped: bool, same: bool, taken: str
) -> None:
    """In `merge` without a preference and in discovery, in any order, and it is no conflict."""
    trusted = dataclasses.replace(marked, untrusted=None) if same else make_row("mm_good", 9.0)
    a, b = make_table({KEY: marked}), make_table({KEY: trusted})
    if swapped:
        a, b = b, a
    union = merge(a, b)
    found, conflicts = combine([a, b])
    assert union.rows[KEY] == found.rows[KEY] == (marked if same else trusted)
    assert (union.rows[KEY].winner.uid, conflicts) == (taken, ())


def test_a_mark_holds_where_another_tables_winner_is_between(marked: Row) -> None:
    """Of three tables, the last of which trusts the marked winner, the second one's is served."""
    other = make_row("mm_right", 6.0, BLOCK_M=64)
    trusting = dataclasses.replace(marked, untrusted=None)
    tables = [
        make_table({KEY: row}, created=f"2026-01-0{day}T00:00:00Z")
        for day, row in enumerate((marked, other, trusting), start=1)
    ]
    assert combine(tables)[0].rows == {KEY: other}


def test_a_mark_is_a_difference(marked: Row) -> None:
    """`diff` reports a row that is trusted in one table only, with the reason."""
    trusted = dataclasses.replace(marked, untrusted=None)
    found = diff(make_table({KEY: trusted}), make_table({KEY: marked}))
    assert [*spell_difference(found)] == [
        f"~ {KEY}",
        "    a mm_wrong(BLOCK_M=32) 5.0 us",
        f"    b mm_wrong(BLOCK_M=32) 5.0 us, not trusted: {WHY}",
    ]


def test_show_names_marked_rows(marked: Row) -> None:
    """After the rows, with the reason, and counted in the last line."""
    *_, line, last = spell_table(make_table({KEY: marked, OTHER: make_row()}))
    assert line == f"not trusted, not served: {KEY}: {WHY}"
    assert last.endswith(", 1 not trusted, timed at 1980 MHz")


def test_marking_changes_what_it_judged_and_nothing_else(marked: Row, tmp_path: Path) -> None:
    """Another writer's new winner is not what was judged, and other rows stay as they are."""
    path = tmp_path / "t.json"
    trusted = dataclasses.replace(marked, untrusted=None)
    write(path, make_table({KEY: trusted, OTHER: make_row("mm_new")}))
    table = TableWriter(path).distrust({KEY: marked, OTHER: marked})
    assert table == read(path)
    assert table.rows == {KEY: marked, OTHER: make_row("mm_new")}
