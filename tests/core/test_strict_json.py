"""JSON that is not trusted: read in pieces, in linear time, with what no document needs refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core import strict_json
from warmup.core.strict_json import MAX_VALUE, JsonError, JsonReader, parse_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)  # fmt: skip


def read_all(reader: JsonReader, depth: int = 0) -> Any:
    """Return the next value, the outer levels of it part by part."""
    if depth < 3 and reader.is_at_object():
        return {name: read_all(reader, depth + 1) for name in reader.members()}
    if depth < 3 and reader.is_at_array():
        return [read_all(reader, depth + 1) for _ in reader.elements()]
    return reader.value()


def read_pieces(text: str, size: int) -> Any:
    reader = JsonReader(text[at : at + size] for at in range(0, len(text), size))
    value = read_all(reader)
    reader.finish()
    return value


@given(JSON, st.integers(1, 7), st.sampled_from([None, 2]))
def test_a_document_in_pieces_is_the_document(value: Any, size: int, indent: int | None) -> None:
    """However a text is cut into pieces, its values are those that `json` finds."""
    text = json.dumps(value, indent=indent)
    if "Infinity" not in text:
        assert read_pieces(text, size) == json.loads(text)


@given(st.text('{}[]",:0 \n\\ax', max_size=30), st.integers(1, 5))
def test_any_text_is_a_value_or_a_json_error(text: str, size: int) -> None:
    """What `json` accepts is read, and all else is a JsonError."""
    try:
        value = json.loads(text)
    except ValueError:
        with pytest.raises(JsonError):
            read_pieces(text, size)
        return
    try:
        assert read_pieces(text, size) == value
    except JsonError as error:
        assert "twice" in str(error)  # noqa: PT017  the only thing that `json` accepts beyond


def test_a_large_document_is_read_in_small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader never has more of the text in memory than a value and two pieces."""
    row = json.dumps({"a": [1, 2, 3], "b": "x" * 100})
    pieces = itertools.chain(["["], itertools.repeat(f"{row},", 20_000), [f"{row}]"])
    reader, largest = JsonReader(pieces), 0
    for _ in reader.elements():
        reader.value()
        largest = max(largest, len(reader.text))
    reader.finish()
    assert largest <= 2 * MAX_VALUE


def test_a_repetition_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60,000 names with one repeated, each is compared once and not with all others."""

    class Counted(str):
        __slots__ = ()
        compared = 0

        def __eq__(self, other: object) -> bool:
            type(self).compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    pairs = [(Counted(number), number) for number in range(60_000)]
    pairs.append((Counted("59999"), 0))
    with pytest.raises(ValueError, match="the name '59999' appears twice in one object"):
        strict_json._unique(pairs)  # type: ignore[arg-type]
    assert Counted.compared < 3 * len(pairs)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_repeated_name_is_refused(levels: int) -> None:
    """A name that an object has twice is an error at every level, with the name."""
    text = '{"a": 1, "b": 2, "a": 3}'
    for _ in range(levels - 1):
        text = f'{{"x": {text}}}'
    for read in (parse_json, lambda text: read_pieces(text, 5)):
        with pytest.raises(JsonError, match="the name 'a' appears twice in one object"):
            read(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("1" * 4301, "an integer of 4301 digits is out of range"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('["a" "b"]', "Expecting ',' delimiter (line 1, column 6)"),
        ('{\n "a": 1,\n  b}', "Expecting property name enclosed in double quotes (line 3, col"),
        ("", "Expecting value (line 1, column 1)"),
        ("1 2", "Extra data (line 1, column 3)"),
    ],
    ids=range(9),
)
def test_what_is_refused_says_why(text: str, problem: str) -> None:
    """Both readers refuse numbers that JSON lacks, deep nesting and what is no JSON."""
    for read in (parse_json, lambda text: read_pieces(text, 1000)):
        with pytest.raises(JsonError) as caught:
            read(text)
        assert str(caught.value).startswith(problem)


def test_the_line_of_an_error_counts_from_the_beginning() -> None:
    """The line and the column in an error are those in the whole document."""
    text = "[\n" + "1,\n" * 300_000 + "  x]"
    with pytest.raises(JsonError, match=r"Expecting value \(line 300002, column 3\)"):
        read_pieces(text, 100_000)


@pytest.mark.parametrize("text", ['"' + "x" * MAX_VALUE + '"', "[" + "{}," * MAX_VALUE + "{}]"])
def test_a_value_that_is_too_long_is_refused(text: str) -> None:
    """A single value has at most so many characters; the objects around it have no limit."""
    reader = JsonReader(iter([text]))
    with pytest.raises(JsonError, match=f"a value of more than {MAX_VALUE} characters"):
        reader.value()
