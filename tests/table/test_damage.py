"""Damaged, hostile and foreign files: always a TableError that names the file and the place."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_processes import peak_of
from sample_tables import make_key, make_row, make_table

from warmup.core.errors import (
    SettingsError,
    TableError,
    TableFormatError,
    TableNotFoundError,
    TableSchemaError,
)
from warmup.core.rows import portable_kwargs
from warmup.serving.audit import read_misses
from warmup.table import store
from warmup.table.codec import decode, encode
from warmup.table.schema import MAX_TABLE_BYTES, SCHEMA_VERSION
from warmup.table.store import read

PATH = "tables/h200/mlp.json"
LONG = '"' + "y" * 5000 + '"'
WRONG = ["null", "true", "-1", "0", "1e400", '"x"', "[]", "{}", "0.5", "9" * 5000, LONG]
KEY = make_key()
ROW = ("rows", "gemm", KEY)
EVIDENCE, WINNER, KWARGS = (*ROW, "evidence"), (*ROW, "winner"), (*ROW, "winner", "kwargs")
OPTIONS, TOLERANCE, TIMING = (("policy", name) for name in ("options", "tolerance", "timing"))
MARK = "@@here@@"
TEXT = encode(make_table({KEY: make_row()}))
DOCUMENT = json.loads(TEXT)
Place = tuple[str, ...]


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _places(inner, (*place, name))


def _pointer(place: Place) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in place)


def _at(document: Any, place: Place) -> Any:
    for name in place:
        document = document[name]
    return document


def _with(place: Place, raw: str, text: str = TEXT) -> str:
    """Return *text* with the JSON *raw* at *place*, however ill-formed that is as a value."""
    if not place:
        return raw
    document = json.loads(text)
    _at(document, place[:-1])[place[-1]] = MARK
    return json.dumps(document, indent=2, sort_keys=True).replace(json.dumps(MARK), raw) + "\n"


def _complaint(text: str) -> TableFormatError:
    with pytest.raises(TableFormatError) as caught:
        decode(text, PATH)
    assert caught.value.path == PATH
    assert str(caught.value).isprintable()  # neither breaks into lines nor colours a terminal
    return caught.value


def test_every_truncation_is_noticed() -> None:
    """At any byte before the last newline, and the error is about the whole file."""
    assert {_complaint(TEXT[:end]).pointer for end in range(len(TEXT) - 1)} == {""}


def test_every_flipped_byte_is_noticed() -> None:
    """The text with any character replaced by a digit is a TableError, or equal in meaning."""
    for index in range(len(TEXT)):
        damaged = TEXT[:index] + "7" + TEXT[index + 1 :]
        with contextlib.suppress(TableError):
            decode(damaged, PATH)
            assert json.loads(damaged) == DOCUMENT, index


def test_every_wrong_value_is_noticed() -> None:
    """Any other value at any place is a TableError, and a wrong type is pointed at."""
    accepted = []
    for place in _places(DOCUMENT):
        for raw in WRONG:
            if raw != json.dumps(_at(DOCUMENT, place)):
                with contextlib.suppress(TableError):
                    decode(_with(place, raw), PATH)
                    accepted.append((place, raw))
        pointer = f"{_pointer(place)}/0" if place[-1:] == ("flags",) else _pointer(place) or "/"
        assert _complaint(_with(place, "[[]]")).pointer == pointer
    assert accepted == []


def test_a_missing_field_is_pointed_at() -> None:
    """At the object that lacks it, or, where any names may stand, by the digest."""
    free = {("rows",), ("rows", "gemm"), OPTIONS, TOLERANCE, KWARGS, (*EVIDENCE, "rejected")}
    for place in _places(DOCUMENT):
        if place:
            damaged = copy.deepcopy(DOCUMENT)
            del _at(damaged, place[:-1])[place[-1]]
            expected = _pointer(place[:-1]) or "/"
            expected = "/provenance/digest" if place[:-1] in free else expected
            assert _complaint(json.dumps(damaged)).pointer == expected, place


def test_an_unknown_field_is_pointed_at() -> None:
    origins = ((), ("provenance",), ("provenance", "device"), ("provenance", "runtime"))
    for place in (*origins, ("policy",), ("rows",), ROW, WINNER, EVIDENCE):
        error = _complaint(_with((*place, "~a/b"), "1"))
        assert error.pointer == f"{_pointer(place)}/~0a~1b"


def test_a_value_that_a_field_cannot_have_is_refused_at_its_place() -> None:
    """A text that could become source code or reach a terminal, a word and a number without use."""
    code = ["__import__('os')", "tl.float32);import os", "tl.float32\nimport os", "tl.float32\n"]
    code += ["tl.float32.to", "TL.float32", "a b", "a=1", "0]", "{{x}}", "é", "x" * 33]
    code += ["_".join(words) for words in (["0" * 16] * 7, ["0" * 17] * 8, ["A" * 16] * 8)]
    uids = ["", "a b", "os.system('x')", "../x", "a/b", "u" * 129, "a\n"]
    texts: dict[Place, list[str]] = {
        (*KWARGS, "ACC_TYPE"): code,
        (*WINNER, "uid"): uids,
        ("provenance", "device", "name"): ["a\nb", "\x1b[31m", "\u202e", "\x00"],
        (*ROW, "untrusted"): ["a\nb", "x" * 513],
    }
    values = {place: [*map(json.dumps, some)] for place, some in texts.items()}
    assert not any(portable_kwargs({"ACC_TYPE": text}) for text in code)  # no row gets them
    values |= {
        (*ROW, "untrusted"): ["null", "5", *values[*ROW, "untrusted"]],
        (*WINNER, "fused"): ["null", "1"],
        (*EVIDENCE, "rejected"): ['{"tired": 1}', '{"crashed": 0}', '{"crashed": 1.5}', "[]"],
        (*EVIDENCE, "flags"): ['["flagged"]', "{}", "[1]"],
        (*EVIDENCE, "scope"): ['"whole"', "1", "null"],
        (*EVIDENCE, "search"): ['"narrow"', "null"],
        (*EVIDENCE, "spread"): ["-0.1"],
        (*EVIDENCE, "peak_share"): ["true"],
        (*EVIDENCE, "clock_mhz"): ["0"],
        (*EVIDENCE, "bare_us"): ["0"],
        (*EVIDENCE, "kernels"): ["0"],
        (*EVIDENCE, "library_kernels"): ["1.5"],
        (*EVIDENCE, "spills"): ["-1"],
        (*EVIDENCE, "registers"): ["null"],
        # Sizes ascend, ratios are at least 1, and pairs are at most eight.
        (*EVIDENCE, "along"): ["null", "[]", "{}", "[[257]]", "[[257, 1.0, 2.0]]"],
        (*TIMING, "launch"): ['"fast"'],
        (*TIMING, "l2"): ['"hot"'],
        (*TIMING, "near_tie"): ["2"],
        (*TIMING, "max_spread"): ["null"],
        (*TIMING, "fused_top_k"): ["-1"],
        (*OPTIONS, "freezing"): ["1e400", "-1e400", "9" * 400 + ".5"],
        ("policy", "seed"): ["9" * 19, "9" * 5000, "9" * 1_000_000],
        ("schema",): ["0", "-1", "1.0", "2.0", "true", '"1"', '"2"', "null"],
    }
    pairs = ['["257", 1.0]', "[257.0, 1.0]", "[0, 1.0]", "[257, 0.5]", '[257, "1"]', "[257, true]"]
    pairs += ["[408, 1.0], [257, 1.0]", "[257, 1.0], [257, 1.0]"]
    pairs += [", ".join(f"[{size}, 1.0]" for size in range(1, 10))]
    values[*EVIDENCE, "along"] += [f"[{each}]" for each in pairs]
    for place, raws in values.items():
        for raw in raws:
            pointer = _complaint(_with(place, raw)).pointer
            assert pointer.startswith(_pointer(place)), (place, raw[:50])
    library = _with((*WINNER, "family"), '"extern"')  # whose winner is neither fused nor not
    assert _complaint(_with((*WINNER, "fused"), "true", library)).pointer.endswith("/fused")


def test_a_name_that_cannot_be_is_refused_at_its_place() -> None:
    words = ["", "a b", "x)", "__import__('os')", "1a", "a.b", "a" * 65, "a\n"]
    names: dict[Place, list[str]] = {
        KWARGS: words,
        OPTIONS: ["", "Freezing", "a.b.c", "__class__.x;y", "a b", "a\n"],
        TOLERANCE: ["", "a\nb", "n" * 5000],
        ("rows", "gemm"): ["", "mm", KEY + "\n", KEY + " ", KEY.upper()],
        ("policy",): ["a\nb", "a\u2028b", "\x1b[31mred"],
    }
    raws = {KWARGS: "1", OPTIONS: "true", TOLERANCE: "0.5", ("policy",): "1"}
    for place, some in names.items():
        for name in some:
            raw = raws.get(place, json.dumps(_at(DOCUMENT, ROW)))
            pointer = _complaint(_with((*place, name), raw)).pointer
            assert pointer.startswith(_pointer(place)), (place, name)


def test_what_is_no_json_is_refused() -> None:
    """A lone surrogate, a number of Python's, a repeated name, and a hundred thousand levels."""
    reason = _complaint(_with(("provenance", "device", "name"), r'"\ud800"')).reason
    assert reason.startswith("not JSON: unexpected end of escaped utf-16 surrogate pair (line ")
    for raw in ("NaN", "Infinity", "-Infinity"):
        for name in ("time_us", "library_us", "tried"):
            reason = _complaint(_with((*EVIDENCE, name), raw)).reason
            assert reason == f"{raw} is not a JSON number", name
    for place in (("schema",), ("policy", "seed"), ROW, ("provenance", "digest")):
        value = json.dumps(_at(DOCUMENT, place))
        doubled = _with(place, f"{value}, {json.dumps(place[-1])}: {value}")
        assert _complaint(doubled).reason == f"the name {place[-1]!r} appears twice in one object"
    for before, opening, reason in (
        ("", "[", "expected an object, found an array"),
        ("", '{"a":', "unknown field"),
        ("", '[{"rows":', "expected an object, found an array"),
        ('{"provenance":', '{"layers":', "nested too deeply"),
        ('{"provenance": {"layers":', "[", "nested too deeply"),
    ):
        assert _complaint(before + opening * 100_000).reason == reason


def test_another_schema_is_its_own_error() -> None:
    """It says found and known, whatever else the table holds, and what to do."""
    for schema in (SCHEMA_VERSION + 1, 10**17, SCHEMA_VERSION - 1):
        other = _with(("news",), "[]", _with(("schema",), str(schema)))
        advice = "older .* build the table again" if schema < SCHEMA_VERSION else "newer .* upgrade"
        with pytest.raises(TableSchemaError, match=advice) as caught:
            decode(other, PATH)
        error = caught.value
        assert (error.path, error.found, error.known) == (PATH, schema, SCHEMA_VERSION)


def test_what_is_no_table_file_is_a_table_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that leads nowhere, to no file or to one of other bytes, and a limit on open files."""
    (tmp_path / "file").write_text("")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", MAX_TABLE_BYTES + 1)
    os.mkfifo(tmp_path / "fifo")
    contents = {
        "empty": b"",
        "not UTF-8 (byte 0)": b"\xff\xfe{}",
        "not UTF-8 (byte 12)": b'{"schema": "\xc3"}',
        "not JSON: invalid character (line 1, column 1)": b"\x00" * 100,
        "not JSON": TEXT.encode("utf-8-sig"),
    }
    for number, content in enumerate(contents.values()):
        (tmp_path / f"{number}.json").write_bytes(content)
    for name, kind, said in (
        *((f"{n}.json", TableFormatError, reason) for n, reason in enumerate(contents)),
        ("", TableFormatError, "cannot be read: Is a directory"),
        ("fifo", TableFormatError, "cannot be read: it is no regular file"),
        ("absent.json", TableNotFoundError, f"no table at {tmp_path}/absent.json"),
        ("file/t.json", TableError, ""),
        ("nul\x00.json", TableError, ""),
        ("n" * 5000 + ".json", TableError, ""),
        ("large.json", TableFormatError, f"larger than {MAX_TABLE_BYTES} bytes"),
    ):
        with pytest.raises(kind) as caught:
            read(tmp_path / name)
        assert said in str(caught.value), name
    with pytest.raises(SettingsError, match="it is no regular file"):
        read_misses(tmp_path / "fifo")

    def refuse(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(store, "open_regular", refuse)
    with pytest.raises(TableFormatError, match=r"Too many open files; raise the limit"):
        read(tmp_path / "0.json")


def test_a_hostile_file_takes_little_memory(tmp_path: Path) -> None:
    """A file of 20 MB that is refused took at most 60 MB to read, and most far less."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_text("{}")
    for kind, text, filler in (
        ("table", '{"a": [@{}]}', "{},"),
        ("table", '{"rows": {"gemm": {@"z": {}}}}', '"a": {},'),
        ("table", f'{{"rows": {{"gemm": {{"{KEY}": [@{{}}]}}}}}}', "{},"),
        ("table", '{"rows": {@"gemm": {}}}', '"gemm": {},'),
        ("table", '{"schema": "@"}', "x"),
        ("table", "{ @", "\n"),
        ("table", "[@[]]", "[],"),
        ("misses", '{"schema": 1, "digests": [], "problems": [@{}]}', "{},"),
        ("misses", '{"schema": 1, "digests": [@""], "problems": []}', '"",'),
        ("misses", '{"schema": 1, "x": [@{}]}', "{},"),
    ):
        large.write_text(text.replace("@", filler * (20_000_000 // len(filler))))
        megabytes, said = peak_of(kind, small, large)
        assert (said != "read", megabytes <= 60) == (True, True), (text, said, megabytes)
