"""The canonical text of a table, its digest, and the field ``along``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.device import CallCost
from warmup.core.errors import TableFormatError
from warmup.core.method import L2, Launch, Method, Search
from warmup.core.roofline import Peaks
from warmup.core.rows import Family, Flag, Rejection, Scope
from warmup.table.codec import decode, digest_of, encode
from warmup.table.schema import Policy, Table

OTHER = {
    "str": "other",
    "str | None": "other",
    "int": 77,
    "int | None": 77,
    "bool | None": True,
    "float": 0.75,
    "float | None": 0.75,
    "Family": Family.CPP,
    "Launch": Launch.CUDAGRAPH,
    "L2": L2.WARM,
    "bool": True,
    "tuple[tuple[Rejection, int], ...]": ((Rejection.WRONG, 2),),
    "tuple[Flag, ...]": (Flag.UNSTABLE,),
    "Scope": Scope.FUSED,
    "Search": Search.WIDE,
    "tuple[tuple[int, float | None], ...]": ((257, 1.0), (560, None)),
    "tuple[tuple[str, KwargValue], ...]": (("BLOCK_M", 16),),
    "frozenset[str]": frozenset({"launch"}),
    "tuple[str, ...]": ("inputs: x=[seqlen,8]:f32",),
    "tuple[tuple[str, CallCost], ...]": (("MLP seqlen=16", CallCost(120.0, 38.0, 2)),),
    "Mapping[str, OptionValue]": {"freezing": True},
    "Mapping[str, float]": {"bf16": 0.5},
    "Peaks | None": Peaks(tflops={"bf16": 1.5}, gbps=2.0, clock_mhz=None, measured="2026-01-02"),
}


def _changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield *value* with each of its fields changed in turn, at every depth."""
    for field in filter(lambda each: each.init, dataclasses.fields(value)):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            for name, changed in _changed(inner):
                yield f"{field.name}.{name}", dataclasses.replace(value, **{field.name: changed})
        elif field.name == "rows":
            (key, row), *_ = inner.items()
            for name, changed in _changed(row):
                rows = {**inner, key: changed}
                yield f"rows.{name}", dataclasses.replace(value, rows=rows)
        else:
            other = OTHER[str(field.type)]
            assert other != inner
            yield field.name, dataclasses.replace(value, **{field.name: other})


@given(data=st.data())
def test_any_table_is_canonical_text_and_is_read_back(
    data: st.DataObject, tables: st.SearchStrategy[Table]
) -> None:
    """The text is sorted two-space JSON in ASCII with LF endings and a final newline."""
    table = data.draw(tables)
    text = encode(table)
    found = decode(text, "t.json")
    assert (found, encode(found)) == (table, text)
    document = json.loads(text)
    assert text == json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
    assert document["provenance"]["digest"] == digest_of(table) == digest_of(found)


def test_a_version_that_is_more_than_a_string_is_written_as_one() -> None:
    """`torch.__version__` is of a subclass of str: text and digest are those of the str."""

    class Version(str):
        __slots__ = ()

    plain = make_table(runtime=make_runtime(torch="2.13.0"))
    other = make_table(runtime=make_runtime(torch=Version("2.13.0")))
    assert (encode(other), digest_of(other)) == (encode(plain), digest_of(plain))


def test_the_order_of_rows_does_not_matter() -> None:
    """Tables with the same rows in another order have the same text."""
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (1024, 16, 560)}
    assert encode(make_table(rows)) == encode(make_table(dict(reversed(rows.items()))))


def test_the_document_has_the_designed_shape() -> None:
    """The top of the document is schema, provenance, policy and rows by kind."""
    document = json.loads(encode(make_table()))
    assert {name: sorted(document[name]) for name in ("provenance", "policy", "rows")} == {
        "provenance": ["created", "device", "digest", "runtime", "warmup"],
        "policy": ["mode", "options", "seed", "timing", "tolerance"],
        "rows": ["gemm"],
    }


def test_every_difference_changes_the_digest() -> None:
    table = make_table()
    digests = {name: digest_of(other) for name, other in _changed(table)}
    digests["nothing"] = digest_of(table)
    assert len(set(digests.values())) == len(digests)
    # A removed row changes the digest.
    table = make_table()
    fewer = dataclasses.replace(table, rows=dict(list(table.rows.items())[1:]))
    assert digest_of(fewer) != digest_of(table)


def test_whole_numbers_can_be_read_back() -> None:
    """A tolerance given as the integer 0 or 1 makes a canonical text that decodes."""
    for tolerance in (0, 1):
        policy = dataclasses.replace(make_table().policy, tolerance={"bf16": tolerance})
        text = encode(make_table(policy=policy))
        assert encode(decode(text, "t.json")) == text, tolerance
    # A time given as an integer number of microseconds makes a canonical text that decodes.
    text = encode(make_table({make_key(): make_row(time_us=5)}))
    assert encode(decode(text, "t.json")) == text


def test_equal_numbers_of_other_types_stay_apart() -> None:
    """Winners that differ only in 1 and true stay different."""
    rows = {make_key(1): make_row(EVEN_K=1), make_key(2): make_row(EVEN_K=True)}
    found = decode(encode(make_table(rows)), "t.json").rows
    assert [type(found[make_key(m)].winner.kwargs[0][1]) for m in (1, 2)] == [int, bool]


def test_rows_are_answered_as_written() -> None:
    """A decoded winner has the types of its kwargs: integer, boolean, text and null."""
    row = make_row(BLOCK_M=64, EVEN_K=True, ALLOW_TF32=False, ACC_TYPE="tl.float32", hint=None)
    (found,) = decode(encode(make_table({make_key(): row})), "t.json").rows.values()
    assert [(name, type(value)) for name, value in found.winner.kwargs] == [
        ("ACC_TYPE", str),
        ("ALLOW_TF32", bool),
        ("BLOCK_M", int),
        ("EVEN_K", bool),
        ("hint", type(None)),
    ]


def test_an_empty_table_is_a_table() -> None:
    """A table without rows, options or tolerances survives the round trip."""
    policy = Policy(mode="m", options={}, timing=Method(), seed=0, tolerance={})
    table = make_table({}, policy=policy)
    assert decode(encode(table), "t.json") == table


def test_a_changed_copy_of_a_read_table_has_a_digest_of_its_own() -> None:
    """The digest that is kept with a table object does not pass to a copy with other rows."""
    table = decode(encode(make_table()), "t.json")
    assert json.loads(encode(table))["provenance"]["digest"] == digest_of(table)
    fewer = dataclasses.replace(table, rows={})
    assert digest_of(fewer) != digest_of(table)
    assert json.loads(encode(fewer))["provenance"]["digest"] == digest_of(fewer)


def test_a_reformatted_table_is_read() -> None:
    """Spaces, tabs and the order of names are not content: the digest still holds."""
    table = make_table()
    document = json.loads(encode(table))
    texts = (
        json.dumps(document),
        json.dumps(document, indent="\t"),
        json.dumps(dict(reversed(document.items())), indent=1, separators=(" , ", " : ")),
    )
    assert all(decode(text, "t.json") == table for text in texts)


def test_a_row_of_the_search_that_left_is_read() -> None:
    """A table that an earlier ``build --search predicted`` wrote: narrow rows, the same digest."""
    key = make_key()
    document = json.loads(encode(make_table(rows={key: make_row()})))
    document["rows"]["gemm"][key]["evidence"]["search"] = "predicted"
    del document["provenance"]["digest"]
    compact = json.dumps(document, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(compact.encode()).hexdigest()
    document["provenance"]["digest"] = digest
    table = decode(json.dumps(document, indent=2, sort_keys=True) + "\n", "t.json")
    assert table.rows[key].evidence.search.is_narrower_than(Search.DEFAULT)
    assert digest_of(table) == digest


def make_document(*along: tuple[int, float | None]) -> tuple[Any, Any]:
    """``make_document(*along)``: the document of a table with one ranged row, and its evidence."""
    row = make_row()
    row = replace(row, evidence=replace(row.evidence, along=along))
    key = make_key("257..560")
    document = json.loads(encode(make_table({key: row})))
    return document, document["rows"]["gemm"][key]["evidence"]


def test_a_ranged_row_alone_has_pairs_of_size_and_ratio() -> None:
    """Tables from before the field was introduced keep their text and digest."""
    assert "along" not in make_document()[1]
    # The size, then the winner's time over the best time there; null where it was not timed.
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
