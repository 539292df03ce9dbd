"""What a row of a range says of the sizes along it: there only if it was measured, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from warmup.core.errors import TableFormatError
from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.codec import decode, encode

Documents = Callable[..., Any]


@pytest.fixture
def spell(
    make_table: Callable[..., Table], make_row: Callable[..., Row], make_key: Callable[..., str]
) -> Documents:
    """``spell(along)``: the document of a table with one row of a range, and its evidence."""

    def make(*along: tuple[int, float | None]) -> tuple[Any, Any]:
        row = make_row()
        row = replace(row, evidence=replace(row.evidence, along=along))
        key = make_key("257..560")
        document = json.loads(encode(make_table({key: row})))
        return document, document["rows"]["gemm"][key]["evidence"]

    return make


def test_a_row_of_one_size_is_spelled_without_it(spell: Documents) -> None:
    """A table that was written before there was such a field is written so again."""
    assert "along" not in spell()[1]


def test_it_is_spelled_as_sizes_and_ratios(spell: Documents) -> None:
    """The size, then the winner's time over the best there; null where it was not timed."""
    assert spell((257, 1.25), (408, None), (560, 1.0))[1]["along"] == [
        [257, 1.25],
        [408, None],
        [560, 1.0],
    ]


@pytest.mark.parametrize(
    "along",
    [
        None,
        [],
        {},
        [[257]],
        [[257, 1.0, 2.0]],
        [["257", 1.0]],
        [[257.0, 1.0]],
        [[0, 1.0]],
        [[257, 0.5]],
        [[257, "1"]],
        [[257, True]],
        [[408, 1.0], [257, 1.0]],
        [[257, 1.0], [257, 1.0]],
        [[size, 1.0] for size in range(1, 10)],
    ],
)
def test_any_other_form_is_refused_with_its_place(spell: Documents, along: Any) -> None:
    """Sizes ascend, a ratio is at least 1, and there are at most eight."""
    document, evidence = spell((257, 1.25))
    evidence["along"] = along
    with pytest.raises(TableFormatError) as caught:
        decode(json.dumps(document), "t.json")
    assert "/evidence/along" in str(caught.value)
