"""Histograms of sizes, read from lines of text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.buckets import MAX_SIZE
from warmup.core.errors import SettingsError
from warmup.diagnostics import suggest
from warmup.diagnostics.suggest import MAX_LINE_BYTES, MAX_REQUESTS, read_histogram


def read(text: str) -> dict[int, int]:
    return read_histogram(io.BytesIO(text.encode()))


def test_each_form_is_read() -> None:
    """Bare sizes, CSV with a header or without and JSON lines give the same counts, added up."""
    for text in (
        "560,2\n1024,1\n",
        "560\n1024\n560",
        "size\n560\n1024\n560\n",
        "size,count\n560,2\n1024,1\n",
        "Size, Count\n560,2\n1024,1\n",
        '"size","count"\n"560","2"\n"1024","1"\n',
        "\ufeffsize,count\r\n560,2\r\n1024,1\r\n",
        "\nsize,count\n\n 560 , 2 \n1024\n\n",
        '{"size": 560, "count": 2}\n{"size": 1024}\n',
        '{"count":2,"size":560}\n1024\n',
        "560,1\n2048,0\n560,1\n1024,1\n",
    ):
        assert read(text) == {560: 2, 1024: 1}


def test_a_bad_line_is_named() -> None:
    size, count = "at `$.size`", "at `$.count`"
    for line, said in (
        *((text, size) for text in ("0", "-4", "nan", "1.5", "\u0665", "9" * 200, "[560, 2]")),
        *((text, size) for text in (str(MAX_SIZE + 1), "size,count", '{"size": 560.5}')),
        *((text, size) for text in ('{"size": true}', '{"size": "560"}', '{"size": {"a": 1}}')),
        *((text, count) for text in ("560,", "560,-1", "560,inf", f"560,{MAX_REQUESTS + 1}")),
        ("560,1,2", "3 columns instead of size,count"),
        ('{"size": 560, "count": NaN}', "malformed"),
        ('{"size": 560, "n": 2}', "unknown field `n`"),
        ('{"count": 2}', "missing required field `size`"),
        ('{"size": 560', "truncated"),
        ("5" * (MAX_LINE_BYTES + 1), "longer than"),
    ):
        with pytest.raises(SettingsError) as raised:
            read(f"560,2\n\n{line}\n1024,1\n")
        where, _, what = str(raised.value).partition(": ")
        assert (where, said in what) == ("--histogram standard input, line 3", True), (line, what)


def test_different_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest, "MAX_SIZES", 2)
    with pytest.raises(SettingsError, match="line 4: more than 2 different sizes"):
        read("5\n6\n5\n7\n")
    with pytest.raises(SettingsError, match="more than 2 different sizes"):
        read_histogram({5: 1, 6: 1, 7: 1})


def test_bad_counts_of_a_program_are_named() -> None:
    bad: list[dict[Any, int]] = [{0: 1}, {560: -1}, {560.5: 1}, {True: 1}, {560: MAX_REQUESTS + 1}]
    for counts in bad:
        with pytest.raises(SettingsError, match=f"the histogram, {next(iter(counts))}: -?[0-9]+: "):
            read_histogram(counts)
    for empty in ({}, {560: 0}):
        with pytest.raises(SettingsError, match="has no size"):
            read_histogram(empty)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_histogram_or_a_settings_error(data: bytes) -> None:
    try:
        counts = read_histogram(io.BytesIO(data))
    except SettingsError:
        return
    assert all(size > 0 and count > 0 for size, count in counts.items())
