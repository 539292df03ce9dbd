"""The canonical text of a table, its digest, and fields of features that have left."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_row, make_rows, make_table

from warmup.core.device import CallCost
from warmup.core.roofline import Peaks
from warmup.core.rows import L2, Family, Flag, Rejection, Scope, Search
from warmup.table.codec import decode, digest_of, encode
from warmup.table.schema import Table

CONFIG = "id_66_tile_10_stages_35_splitk_3_red_2_swizzle_0_custom_1_inner_0_cluster_4"
OTHER = {
    "str": "other",
    "str | None": "other",
    "int": 77,
    "int | None": 77,
    "bool | None": True,
    "float": 0.75,
    "float | None": 0.75,
    "Family": Family.CPP,
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
                yield f"{field.name}.{name}", replace(value, **{field.name: changed})
        elif field.name == "rows":
            (key, row), *_ = inner.items()
            for name, changed in _changed(row):
                rows = {**inner, key: changed}
                yield f"rows.{name}", replace(value, rows=rows)
        else:
            other = OTHER[str(field.type)]
            assert other != inner
            yield field.name, replace(value, **{field.name: other})


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


def test_the_document_has_the_designed_shape() -> None:
    """Fields that came later are absent without a value, so that older digests stay."""
    document = json.loads(encode(make_table()))
    assert {name: sorted(document[name]) for name in ("provenance", "policy", "rows")} == {
        "provenance": ["created", "device", "digest", "runtime", "warmup"],
        "policy": ["mode", "options", "seed", "timing", "tolerance"],
        "rows": ["gemm"],
    }
    (row,) = json.loads(encode(make_table(make_rows(1))))["rows"]["gemm"].values()
    assert row.keys() == {"evidence", "winner"}
    assert not row["evidence"].keys() & {"along", "kernels"}


def test_every_difference_changes_the_digest() -> None:
    table = make_table()
    digests = {name: digest_of(other) for name, other in _changed(table)}
    digests["nothing"] = digest_of(table)
    digests["a row less"] = digest_of(replace(table, rows=dict([*table.rows.items()][1:])))
    assert len(set(digests.values())) == len(digests)


def test_a_number_has_the_type_that_it_was_written_with() -> None:
    """Winners that differ only in 1 and true stay different; whole numbers may stand for floats."""
    kwargs = {"ACC_TYPE": "tl.float32", "ALLOW_TF32": False, "BLOCK_M": 64, "EVEN_K": True}
    rows = {
        make_key(1): make_row(time_us=5, hint=None, **kwargs),  # type: ignore[arg-type]
        make_key(2): make_row(EVEN_K=1),
        make_key(3): make_row(EVEN_K=True),
        make_key(4): make_row(algorithm=CONFIG),
    }
    policy = replace(make_table().policy, tolerance={"bf16": 0, "f32": 1})
    text = encode(make_table(rows, policy=policy))
    found = decode(text, "t.json")
    types = [[type(value) for _, value in row.winner.kwargs] for row in found.rows.values()]
    assert types == [[str, bool, int, bool, type(None)], [int], [bool], [str]]
    assert encode(found) == text


def test_a_reformatted_table_is_read() -> None:
    """Spaces, tabs and the order of names are not content: the digest still holds."""
    document = json.loads(encode(make_table()))
    for text in (
        json.dumps(document),
        json.dumps(document, indent="\t"),
        json.dumps(dict(reversed(document.items())), indent=1, separators=(" , ", " : ")),
    ):
        assert decode(text, "t.json") == make_table(), text
