"""Rows that a build does not trust: kept with their evidence and the reason, and never served."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from pathlib import Path

import pytest
from sample_tables import make_row, make_table

from warmup.core.errors import MissError, MissReason
from warmup.core.events import Emitter, Event, Missed
from warmup.core.rows import Winner
from warmup.core.trial import Candidate, Tuned
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import CallsQuestion, GemmQuestion, Question, RegionQuestion
from warmup.table.codec import decode, digest_of, encode
from warmup.table.lookup import Lookup
from warmup.table.merge import combine, merge
from warmup.table.schema import OnMiss
from warmup.table.store import TableWriter, read, write

WHY = "bucket seqlen=16: with it the output was 3.2e-01 away from float32 eager"
KEY = "mm m=16 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"
OTHER = KEY.replace("m=16", "m=32")
PROBLEM = GemmProblem.of_key(KEY)
TRUSTED = make_row("mm_wrong", 5.0, BLOCK_M=32)
MARKED = dataclasses.replace(TRUSTED, untrusted=WHY)
GOOD = make_row("mm_good", 9.0)
LIBRARY = make_row("mm_library").winner
WINNERS = [LIBRARY, MARKED.winner, GOOD.winner]
MISS = Missed(KEY, MissReason.UNTRUSTED, "aten::mm")


class _Measurer:
    """A tuner that keeps the winners that each question offers."""

    def __init__(self) -> None:
        self.offered: list[list[Winner]] = []

    def measure(self, question: Question) -> Tuned | None:
        self.offered.append([one for one in WINNERS if question.offers(one)])
        return Tuned(question.problem.key, GOOD, ())

    def close(self) -> None:
        pass


def test_a_marked_row_is_written_with_its_reason_and_evidence() -> None:
    """A long reason is cut, so that the table can be read back."""
    table, trusted = make_table({KEY: MARKED}), make_table({KEY: TRUSTED})
    assert decode(encode(table), "t.json") == table
    row = json.loads(encode(table))["rows"]["gemm"][KEY]
    assert row.pop("untrusted") == WHY
    assert row == json.loads(encode(trusted))["rows"]["gemm"][KEY]
    assert digest_of(table) != digest_of(trusted)
    long = make_table({KEY: dataclasses.replace(TRUSTED, untrusted="x" * 600)})
    assert decode(encode(long), "t.json").rows[KEY].untrusted == "x" * 512


def test_a_marked_row_is_a_counted_miss_with_its_own_reason() -> None:
    """Strict serving refuses it; a build serves the bucket without the rows that it has marked."""
    events: list[Event] = []
    lookup = Lookup({KEY: MARKED}, OnMiss.FALLBACK, Emitter([events.append]))
    assert lookup.find(PROBLEM) is MissReason.UNTRUSTED
    lookup.emit(MISS)
    fields = events[0].fields
    assert (fields["reason"], fields["nearest"]) == ("untrusted", KEY)
    assert fields["differs"] == [f"row mm_wrong(BLOCK_M=32), not trusted: {WHY}"]
    strict = Lookup({KEY: MARKED}, OnMiss.STRICT, Emitter([]))
    with pytest.raises(MissError, match="untrusted"):
        strict.emit(MISS)
    dataclasses.replace(strict, excused={KEY}).emit(MISS)


def test_a_marked_key_is_measured_without_its_winner() -> None:
    """The library's kernel stays even if it is marked: it is what all others are measured by."""
    for library, excused in product((LIBRARY, MARKED.winner), ((), {KEY})):
        winners = tuple(dict.fromkeys((library, *WINNERS)))
        calls = dict.fromkeys(winners, lambda _number: None)
        questions: list[Question] = [
            GemmQuestion(PROBLEM, "cpu", tuple(map(Candidate, winners)), library=library),
            CallsQuestion(PROBLEM, library, calls),
            RegionQuestion(PROBLEM, winners, None, calls=calls),
        ]
        tuner = _Measurer()
        for question in questions:
            lookup = Lookup(
                {KEY: MARKED}, OnMiss.FALLBACK, Emitter([]), tuner=tuner, excused=excused
            )
            # What a build has marked it does not measure again: the next build does.
            assert lookup.measure(question) == (None if excused else GOOD.winner)
            assert lookup.find(PROBLEM) == (MissReason.UNTRUSTED if excused else GOOD.winner)
        offered = [LIBRARY, GOOD.winner] if library is LIBRARY else WINNERS
        assert tuner.offered == ([] if excused else [offered] * 3)


def test_a_union_takes_another_winner_and_keeps_the_mark_of_the_same() -> None:
    """In `merge` without a preference and in discovery, in any order, and it is no conflict."""
    for row, taken in ((TRUSTED, MARKED), (GOOD, GOOD)):
        a, b = make_table({KEY: MARKED}), make_table({KEY: row})
        for one, other in ((a, b), (b, a)):
            found, conflicts = combine([one, other])
            assert merge(one, other).rows == found.rows == {KEY: taken}
            assert conflicts == ()
    # The winner between two tables, the first of which marks what the last trusts, is served.
    tables = [
        make_table({KEY: row}, created=f"2026-01-0{day}T00:00:00Z")
        for day, row in enumerate((MARKED, GOOD, TRUSTED), start=1)
    ]
    assert combine(tables)[0].rows == {KEY: GOOD}


def test_marking_changes_what_it_judged_and_nothing_else(tmp_path: Path) -> None:
    """Another writer's new winner is not what was judged, and other rows stay as they are."""
    path = tmp_path / "t.json"
    write(path, make_table({KEY: TRUSTED, OTHER: GOOD}))
    table = TableWriter(path).distrust({KEY: MARKED, OTHER: MARKED})
    assert table == read(path)
    assert table.rows == {KEY: MARKED, OTHER: GOOD}
