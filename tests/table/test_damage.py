"""Damaged, hostile and foreign files: always a TableError that names the file and the place."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_row, make_table

from warmup.core.errors import TableError, TableFormatError, TableNotFoundError, TableSchemaError
from warmup.table.codec import decode, encode
from warmup.table.schema import MAX_TABLE_BYTES, SCHEMA_VERSION
from warmup.table.store import read

PATH = "tables/h200/mlp.json"
LONG = '"' + "y" * 5000 + '"'
WRONG = ["null", "true", "-1", "0", "1e400", '"x"', "[]", "{}", "0.5", "9" * 5000, LONG]
KEY = "addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=none"
MARK = "@@here@@"


@pytest.fixture(scope="module")
def text() -> str:
    """The text of a table with one row."""
    return encode(make_table({KEY: make_row()}))


def _places(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield place
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _places(inner, (*place, name))


def _pointer(place: tuple[str, ...]) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in place)


def _at(document: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        document = document[name]
    return document


def _with(text: str, place: tuple[str, ...], raw: str) -> str:
    """Return *text* with the JSON *raw* at *place*, however ill-formed that is as a value."""
    if not place:
        return raw
    document = copy.deepcopy(json.loads(text))
    _at(document, place[:-1])[place[-1]] = MARK
    return json.dumps(document, indent=2, sort_keys=True).replace(json.dumps(MARK), raw) + "\n"


def _complaint(text: str) -> TableFormatError:
    with pytest.raises(TableFormatError) as caught:
        decode(text, PATH)
    assert caught.value.path == PATH
    return caught.value


def test_every_truncation_is_noticed(text: str) -> None:
    """The text cut at any byte before its last newline is damage, and the file is named."""
    found = set()
    for end in range(len(text) - 1):
        with pytest.raises(TableFormatError) as caught:
            decode(text[:end], PATH)
        found.add((caught.value.path, caught.value.pointer))
    assert found == {(PATH, "")}


def test_every_flipped_byte_is_noticed(text: str) -> None:
    """The text with any one character replaced by a digit is a TableError, or equal in meaning."""
    meant = json.loads(text)
    accepted = []
    for index in range(len(text)):
        damaged = text[:index] + "7" + text[index + 1 :]
        try:
            decode(damaged, PATH)
        except TableError:
            continue
        accepted.append(json.loads(damaged) == meant)
    assert all(accepted)


def test_every_wrong_value_is_noticed(text: str) -> None:
    """Any other value at any place of the document is a TableError, never another exception."""
    document = json.loads(text)
    accepted = []
    for place in _places(document):
        for raw in WRONG:
            if raw == json.dumps(_at(document, place)):
                continue
            with contextlib.suppress(TableError):
                decode(_with(text, place, raw), PATH)
                accepted.append((place, raw))
    assert accepted == []


def test_a_wrong_type_is_pointed_at(text: str) -> None:
    """An array of arrays at any place is reported with the JSON pointer of that place."""
    wrong = {
        _pointer(place): pointer
        for place in _places(json.loads(text))
        if (pointer := _complaint(_with(text, place, "[[]]")).pointer)
        != (f"{_pointer(place)}/0" if place[-1:] == ("flags",) else _pointer(place) or "/")
    }
    assert wrong == {}


def test_a_missing_field_is_pointed_at(text: str) -> None:
    """A field taken away anywhere is reported at the object that lacks it, or by the digest."""
    document = json.loads(text)
    kwargs = ("rows", "gemm", KEY, "winner", "kwargs")
    rejected = ("rows", "gemm", KEY, "evidence", "rejected")
    free = [("rows",), ("rows", "gemm"), ("policy", "options"), ("policy", "tolerance")]
    free += [kwargs, rejected]
    wrong = []
    for place in _places(document):
        if not place:
            continue
        damaged = copy.deepcopy(document)
        del _at(damaged, place[:-1])[place[-1]]
        expected = "/provenance/digest" if place[:-1] in free else _pointer(place[:-1]) or "/"
        if (pointer := _complaint(json.dumps(damaged)).pointer) != expected:
            wrong.append((place, pointer))
    assert wrong == []


def test_an_unknown_field_is_pointed_at(text: str) -> None:
    named = [
        (),
        ("provenance",),
        ("provenance", "device"),
        ("provenance", "runtime"),
        ("policy",),
        ("rows",),
        ("rows", "gemm", KEY),
        ("rows", "gemm", KEY, "winner"),
        ("rows", "gemm", KEY, "evidence"),
    ]
    found = [_complaint(_with(text, (*place, "~a/b"), "1")) for place in named]
    assert [error.pointer for error in found] == [f"{_pointer(place)}/~0a~1b" for place in named]


def test_a_complaint_is_one_printable_line(text: str) -> None:
    """A hostile field name can neither break the message into lines nor colour a terminal."""
    for name in ("a\nb", "a\u2028b", "\x1b[31mred", "\ud800"):
        error = _complaint(_with(text, ("policy", name), "1"))
        assert str(error).isprintable(), name


def test_a_tolerance_is_for_a_dtype(text: str) -> None:
    for case, name in {"empty": "", "lines": "a\nb", "long": "n" * 5000}.items():
        error = _complaint(_with(text, ("policy", "tolerance", name), "0.5"))
        assert error.pointer != "/provenance/digest", case


def test_numbers_that_cannot_be_are_refused(text: str) -> None:
    for raw, name in product(("NaN", "Infinity", "-Infinity"), ("time_us", "library_us", "tried")):
        error = _complaint(_with(text, ("rows", "gemm", KEY, "evidence", name), raw))
        assert error.reason == f"{raw} is not a JSON number", (raw, name)
    # An integer of many digits is refused at its place, and not made into a number.
    for digits in (19, 5000, 1_000_000):
        error = _complaint(_with(text, ("policy", "seed"), "9" * digits))
        said = "expected an integer <= 2147483647", "integer value out of range"
        assert (error.pointer, error.reason) == ("/policy/seed", said[digits > 4300])
    # A number that overflows is out of range at its place.
    for raw in ("1e400", "-1e400", "9" * 400 + ".5"):
        error = _complaint(_with(text, ("policy", "options", "freezing"), raw))
        assert error.pointer == "/policy/options/freezing", raw


def test_deep_nesting_is_refused() -> None:
    """A hundred thousand levels are a TableFormatError, not a crash."""
    for before, opening, reason in (
        ("", "[", "expected an object, found an array"),
        ("", '{"a":', "unknown field"),
        ("", '[{"rows":', "expected an object, found an array"),
        ('{"provenance":', '{"layers":', "nested too deeply"),
        ('{"provenance": {"layers":', "[", "nested too deeply"),
    ):
        assert _complaint(before + opening * 100_000).reason == reason


def test_a_repeated_name_is_refused(text: str) -> None:
    """An object that has a name twice is refused, even when both values agree."""
    for place in (("schema",), ("policy", "seed"), ("rows", "gemm", KEY), ("provenance", "digest")):
        value = json.dumps(_at(json.loads(text), place))
        doubled = _with(text, place, f"{value}, {json.dumps(place[-1])}: {value}")
        assert _complaint(doubled).reason == f"the name {place[-1]!r} appears twice in one object"


def test_code_is_no_template_parameter(text: str) -> None:
    """A word that could become source code is refused at its place."""
    for word in (
        "__import__('os')",
        "tl.float32);import os",
        "tl.float32\nimport os",
        "tl.float32\n",
        "tl.float32.to",
        "TL.float32",
        "a b",
        "a=1",
        "0]",
        "{{x}}",
        "é",
        "x" * 33,
    ):
        place = ("rows", "gemm", KEY, "winner", "kwargs", "ACC_TYPE")
        assert _complaint(_with(text, place, json.dumps(word))).pointer == _pointer(place)


def test_names_are_names(text: str) -> None:
    for name in ("", "a b", "x)", "__import__('os')", "1a", "a.b", "a" * 65, "a\n"):
        place = ("rows", "gemm", KEY, "winner", "kwargs", name)
        assert _complaint(_with(text, place, "1")).pointer == _pointer(place), name
    # The uid of a winner is a plain dotted name.
    for uid in ("", "a b", "os.system('x')", "../x", "a/b", "u" * 129, "a\n"):
        place = ("rows", "gemm", KEY, "winner", "uid")
        assert _complaint(_with(text, place, json.dumps(uid))).pointer == _pointer(place)


def test_only_a_template_is_fused_or_not(text: str) -> None:
    """The decision of a template is true or false, and a library's winner has none."""
    for family, raw in (("template", "null"), ("template", "1"), ("extern", "true")):
        winner = ("rows", "gemm", KEY, "winner")
        changed = _with(text, (*winner, "family"), json.dumps(family))
        assert _complaint(_with(changed, (*winner, "fused"), raw)).pointer == _pointer(
            (*winner, "fused")
        ), family


def test_names_and_text_have_their_form(text: str) -> None:
    """An inductor option is a lower-case name, or two with a dot between."""
    for name in ("", "Freezing", "a.b.c", "__class__.x;y", "a b", "a\n"):
        place = ("policy", "options", name)
        assert _complaint(_with(text, place, "true")).pointer == _pointer(place), name
    # A row has the name of a problem.
    for key in ("", "mm", KEY + "\n", KEY + " ", KEY.upper()):
        place = ("rows", "gemm", key)
        row = json.dumps(_at(json.loads(text), ("rows", "gemm", KEY)))
        assert _complaint(_with(text, place, row)).pointer == _pointer(place), key
    # A device name with characters that a terminal interprets is refused.
    for value in ("a\nb", "\x1b[31m", "\u202e", "\x00"):
        place = ("provenance", "device", "name")
        assert _complaint(_with(text, place, json.dumps(value))).pointer == _pointer(place)
    # A surrogate without its pair is refused, as no JSON.
    raw = _with(text, ("provenance", "device", "name"), r'"\ud800"')
    assert _complaint(raw).reason.startswith(
        "not JSON: unexpected end of escaped utf-16 surrogate pair (line "
    )


def test_another_schema_is_its_own_error(text: str) -> None:
    """It says found and known, whatever else the table holds, and what to do."""
    for schema in (SCHEMA_VERSION + 1, 10**17, SCHEMA_VERSION - 1):
        other = _with(_with(text, ("news",), "[]"), ("schema",), str(schema))
        advice = "older .* build the table again" if schema < SCHEMA_VERSION else "newer .* upgrade"
        with pytest.raises(TableSchemaError, match=advice) as caught:
            decode(other, PATH)
        error = caught.value
        assert (error.path, error.found, error.known) == (PATH, schema, SCHEMA_VERSION)


def test_evidence_and_method_are_checked_to_the_last_value(text: str) -> None:
    """An unknown word and an impossible number are refused at their pointers."""
    evidence, timing = ("rows", "gemm", KEY, "evidence"), ("policy", "timing")
    for name, raw in (
        ("rejected", '{"tired": 1}'),
        ("rejected", '{"crashed": 0}'),
        ("rejected", '{"crashed": 1.5}'),
        ("rejected", "[]"),
        ("flags", '["flagged"]'),
        ("flags", "{}"),
        ("flags", "[1]"),
        ("spread", "-0.1"),
        ("peak_share", "true"),
        ("clock_mhz", "0"),
        ("scope", '"whole"'),
        ("scope", "1"),
        ("scope", "null"),
        ("bare_us", "0"),
        ("search", '"narrow"'),
        ("search", "null"),
        ("kernels", "0"),
        ("library_kernels", "1.5"),
        ("spills", "-1"),
        ("registers", "null"),
        ("launch", '"fast"'),
        ("l2", '"hot"'),
        ("near_tie", "2"),
        ("max_spread", "null"),
        ("fused_top_k", "-1"),
    ):
        is_timing = name in {"launch", "l2", "near_tie", "max_spread", "fused_top_k"}
        place = (*(timing if is_timing else evidence), name)
        assert _complaint(_with(text, place, raw)).pointer.startswith(_pointer(place)), name


def test_other_schemas_are_damage(text: str) -> None:
    for raw in ("0", "-1", "1.0", "2.0", "true", '"1"', '"2"', "null"):
        assert _complaint(_with(text, ("schema",), raw)).pointer == "/schema", raw


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)


@given(st.text(max_size=200) | JSON.map(json.dumps))
def test_any_text_is_a_table_error(text: str) -> None:
    """No text and no JSON makes the decoder raise anything but a TableError."""
    with pytest.raises(TableError):
        decode(text, PATH)


def test_a_file_that_is_no_json_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Empty, binary and non-UTF-8 files are TableFormatErrors with the path and the byte."""
    for content, reason in (
        (b"", "empty"),
        (b"\xff\xfe{}", "not UTF-8 (byte 0)"),
        (b'{"schema": "\xc3"}', "not UTF-8 (byte 12)"),
        (b"\x00" * 100, "not JSON: invalid character (line 1, column 1)"),
        (b"\x80\x04\x95.", "not UTF-8 (byte 0)"),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "t.json"
        path.write_bytes(content)
        with pytest.raises(TableFormatError) as caught:
            read(path)
        error = caught.value
        assert (error.path, error.pointer, error.reason) == (str(path), "", reason), content


def test_what_is_no_table_file_is_a_table_error(tmp_path: Path, text: str) -> None:
    """A folder, a path that leads nowhere or cannot be, a byte order mark, and too many bytes."""
    (tmp_path / "file").write_text("")
    (tmp_path / "mark.json").write_text(text, encoding="utf-8-sig")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", MAX_TABLE_BYTES + 1)
    for name, kind, said in (
        ("", TableFormatError, "cannot be read: Is a directory"),
        ("absent.json", TableNotFoundError, f"no table at {tmp_path}/absent.json"),
        ("file/t.json", TableError, ""),
        ("nul\x00.json", TableError, ""),
        ("n" * 5000 + ".json", TableError, ""),
        ("mark.json", TableFormatError, ""),
        ("large.json", TableFormatError, f"larger than {MAX_TABLE_BYTES} bytes"),
    ):
        with pytest.raises(kind) as caught:
            read(tmp_path / name)
        assert said in str(caught.value), name
