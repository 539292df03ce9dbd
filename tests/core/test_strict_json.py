"""JSON that is not trusted, in the form that a struct declares: errors have places."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from warmup.core.errors import TableFormatError
from warmup.core.strict_json import read_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)  # fmt: skip


class Size(msgspec.Struct, forbid_unknown_fields=True):
    """An object with a bounded number."""

    n: Annotated[int, Meta(ge=1)]
    sides: tuple[tuple[int, float | None], ...] = ()


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document with each container that a table has."""

    by_name: dict[Annotated[str, Meta(pattern=r"\A[a-z/~]*\Z")], dict[str, Size] | None] = {}
    listed: list[dict[str, Size]] = []


PLACES = {
    "[]": ("/", "expected an object, found an array"),
    '{"x/y": 1}': ("/x~1y", "unknown field"),
    '{"by_name": 1}': ("/by_name", "expected an object, found an integer"),
    '{"by_name": {"a": {}, "b": {"c": {"n": "1"}}}}': (
        "/by_name/b/c/n",
        "expected an integer, found a string",
    ),
    '{"by_name": {"a/~": {"c": {"n": 0}}}}': ("/by_name/a~1~0/c/n", "expected an integer >= 1"),
    '{"by_name": {"a": {"c": {}}}}': ("/by_name/a/c", "missing: n"),
    '{"by_name": {"a": {}, "B": {}}}': (
        "/by_name/B",
        r"expected a string matching regex '\\A[a-z/~]*\\Z'",
    ),
    '{"listed": [{}, {"c": {"n": 1, "sides": [[1, 2], [1, "x"]]}}]}': (
        "/listed/1/c/sides/1/1",
        "expected a number or null, found a string",
    ),
    '{"listed": [{"c": {"n": 1}, "c": {"n": 1}}]}': (
        "",
        "the name 'c' appears twice in one object",
    ),
    r'{"listed": [{"c": {"n": 1}, "\u0063": {"n": 1}}]}': (
        "",
        "the name 'c' appears twice in one object",
    ),
    '{\n "by_name": {},\n}': ("", "not JSON: trailing comma in object (line 3, column 1)"),
    '{"by_name": -Infinity}': ("", "-Infinity is not a JSON number"),
    "": ("", "empty"),
}


def test_what_is_refused_is_pointed_at() -> None:
    """The error has the JSON pointer of the value, through dicts, arrays and unions."""
    for text, expected in PLACES.items():
        with pytest.raises(TableFormatError) as caught:
            read_json(text.encode(), Document, "x.json")
        assert (caught.value.pointer, caught.value.reason) == expected, text
    with pytest.raises(TableFormatError, match=r"not UTF-8 \(byte 1\)"):
        read_json(b"\x20\xff", Document, "x.json")


@given(JSON | st.text(max_size=50))
def test_any_text_is_a_document_or_an_error(value: Any) -> None:
    for text in (json.dumps(value), str(value)):
        try:
            read_json(text.encode("utf-8", "replace"), Document, "x.json")
        except TableFormatError:
            continue
