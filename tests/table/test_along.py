"""The field ``along``: a ranged row's times at sizes of its range, written only if measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table

from warmup.core.errors import TableFormatError
from warmup.table.codec import decode, encode


def make_document(*along: tuple[int, float | None]) -> tuple[Any, Any]:
    """``make_document(*along)``: the document of a table with one ranged row, and its evidence."""
    row = make_row()
    row = replace(row, evidence=replace(row.evidence, along=along))
    key = make_key("257..560")
    document = json.loads(encode(make_table({key: row})))
    return document, document["rows"]["gemm"][key]["evidence"]


def test_a_row_of_one_size_has_no_such_field() -> None:
    """Tables from before the field was introduced keep their text and digest."""
    assert "along" not in make_document()[1]


def test_the_field_has_pairs_of_size_and_ratio() -> None:
    """The size, then the winner's time over the best time there; null where it was not timed."""
    assert make_document((257, 1.25), (408, None), (560, 1.0))[1]["along"] == [
        [257, 1.25],
        [408, None],
        [560, 1.0],
    ]


def test_any_other_form_is_refused_with_its_pointer() -> None:
    """Sizes must ascend, ratios be at least 1, and pairs be at most eight."""
    for along in (
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
    ):
        document, evidence = make_document((257, 1.25))
        evidence["along"] = along
        with pytest.raises(TableFormatError) as caught:
            decode(json.dumps(document), "t.json")
        assert "/evidence/along" in str(caught.value), along
