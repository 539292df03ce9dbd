"""Which winners are near a problem, and what searches come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from warmup.core.errors import ProblemError
from warmup.core.method import Search
from warmup.core.rows import Family, Row, Winner
from warmup.core.search import CandidateSource, Resource, Searched, searched_to_json
from warmup.keys.kind import Kind
from warmup.keys.nearest import nearest, neighbours_of

MakeKey = Callable[..., str]
MakeRow = Callable[..., Row]
FOUND = Searched(
    search=Search.WIDE,
    listed=18,
    added=((CandidateSource.TMA, 7), (CandidateSource.TILES, 3)),
    pruned=((Resource.SHARED_MEMORY, 25),),
    spilling=1,
)


def blocks(winners: tuple[Winner, ...]) -> list[object]:
    return [dict(winner.kwargs)["BLOCK_M"] for winner in winners]


def test_the_nearest_comes_first_by_ratio(make_key: MakeKey, make_row: MakeRow) -> None:
    """To m=32, 40 is nearest; 16 and 64 are equally far, and 4096 the farthest."""
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (4096, 64, 16, 40)}
    assert blocks(neighbours_of(make_key(32), rows)) == [40, 16, 64, 4096]


def test_the_order_of_rows_does_not_matter(make_key: MakeKey, make_row: MakeRow) -> None:
    """Rows that are equally near are taken in key order."""
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (16, 64, 256)}
    backwards = dict(reversed(rows.items()))
    assert neighbours_of(make_key(32), rows) == neighbours_of(make_key(32), backwards)


def test_at_most_so_many_are_taken(make_key: MakeKey, make_row: MakeRow) -> None:
    """Only the nearest are taken."""
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (16, 64, 256)}
    assert blocks(neighbours_of(make_key(200), rows, 1)) == [256]


def test_equal_winners_count_once(make_key: MakeKey, make_row: MakeRow) -> None:
    """Two rows with one winner make one neighbour, so that a third can be taken."""
    rows = {make_key(m): make_row(BLOCK_M=64 if m < 100 else m) for m in (16, 32, 256)}
    assert blocks(neighbours_of(make_key(24), rows, 2)) == [64, 256]


def test_other_products_are_no_neighbours(make_key: MakeKey, make_row: MakeRow) -> None:
    """Another op, dtype or operand order is another thing, whatever its sizes."""
    near = make_key(64)
    others = (
        near.replace("addmm", "mm").replace(" bias=1d", ""),
        near.replace("bf16", "f16"),
        near.replace("b=col", "b=row"),
    )
    assert neighbours_of(make_key(32), {key: make_row() for key in others}) == ()


def test_strides_and_epilogues_do_not_matter(make_key: MakeKey, make_row: MakeRow) -> None:
    """A row with another leading dimension and another epilogue is a neighbour."""
    row = make_key(64, epilogue="relu").replace("a=row", "a=row/4096")
    assert len(neighbours_of(make_key(32), {row: make_row()})) == 1


def test_library_winners_are_no_neighbours(make_key: MakeKey, make_row: MakeRow) -> None:
    """Only template winners have a tile to try."""
    row = replace(make_row(), winner=Winner(Family.EXTERN, "aten::addmm"))
    assert neighbours_of(make_key(32), {make_key(64): row}) == ()


def test_rows_of_other_kinds_are_no_neighbours(
    toy_kind: Kind, make_key: MakeKey, make_row: MakeRow
) -> None:
    """A row of another kind is left out, even if its winner is a template too."""
    rows = {"toy cat m=1 n=4 via=sum f32 tag=7": make_row(), make_key(64): make_row(BLOCK_M=64)}
    assert blocks(neighbours_of(make_key(32), rows)) == [64]


def test_the_nearest_row_has_the_closest_sizes_of_its_kind(toy_kind: Kind) -> None:
    """Of two rows with equally many differences that one is nearest whose `Kind.nearest_by` is."""
    rows = [f"toy cat m=1 n={n} via=sum f32 tag=7" for n in (1, 70)]
    asked = "toy cat m=1 n=64 via=sum f32 tag=7"
    assert nearest(asked, rows) == (rows[1], ("n: row 70, here 64",))


def test_the_nearest_row_has_the_same_first_words(toy_kind: Kind) -> None:
    """A row whose first `Kind.fixed` words are not those of the key is never near."""
    rows = ["toy split m=1 n=64 via=sum f32 tag=7"]
    assert nearest("toy cat m=1 n=64 via=sum f32 tag=7", rows) == (None, ())


def test_a_range_counts_by_its_lower_end(make_key: MakeKey, make_row: MakeRow) -> None:
    """A ranged row and a ranged question are placed by the lower end of their range."""
    ranged = make_key(64).replace("m=64", "m=32..4096")
    rows = {ranged: make_row(BLOCK_M=1), make_key(128): make_row(BLOCK_M=2)}
    assert blocks(neighbours_of(make_key(32).replace("m=32", "m=32..64"), rows)) == [1, 2]


def test_what_is_no_gemm_key_is_told() -> None:
    """Neighbours of anything but a product are an error."""
    with pytest.raises(ProblemError):
        neighbours_of("mm of nothing", {})


def test_two_parts_of_a_search_add_up() -> None:
    """A selection that is listed in parts has the sums of their counts."""
    first = Searched(search=Search.WIDE, listed=2)
    later = Searched(
        search=Search.WIDE,
        listed=18,
        added=((CandidateSource.TMA, 7), (CandidateSource.TILES, 3)),
        pruned=((Resource.SHARED_MEMORY, 1),),
        spilling=1,
    )
    assert first + later == replace(later, listed=20)


def test_what_is_tried_is_what_is_listed_and_added() -> None:
    """Candidates to compile are inductor's and the added ones, without the pruned."""
    pruned = ((Resource.SHARED_MEMORY, 9),)
    searched = Searched(
        search=Search.WIDE, listed=20, added=((CandidateSource.TMA, 7),), pruned=pruned
    )
    assert searched.tried == 27


def test_a_search_is_said_in_one_line() -> None:
    """The word and every count that there is; what did not occur is not said."""
    assert str(FOUND) == "wide: 18 listed, 7 tma, 3 tiles, 25 pruned by shared_memory, 1 spilling"
    assert str(Searched(search=Search.DEFAULT, listed=2)) == "default: 2 listed"


def test_a_search_is_written_as_plain_json() -> None:
    """What is written holds every count, by the names of sources and resources."""
    assert json.loads(json.dumps(searched_to_json(FOUND))) == {
        "search": "wide",
        "listed": 18,
        "added": {"tma": 7, "tiles": 3},
        "pruned": {"shared_memory": 25},
        "spilling": 1,
    }


@pytest.mark.parametrize(("offered", "listed"), [(30, 20), (28, 18), (27, 18)])
def test_what_no_source_added_was_listed(offered: int, listed: int) -> None:
    """Candidates beyond those that were seen are inductor's own; a lost one was still listed."""
    assert FOUND.completed(offered) == replace(FOUND, listed=listed)
