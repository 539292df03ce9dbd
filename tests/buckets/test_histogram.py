"""Histograms of sizes, read from lines of text."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.buckets import MAX_SIZE
from warmup.core.errors import SettingsError
from warmup.diagnostics import suggest
from warmup.diagnostics.suggest import MAX_LINE_BYTES, MAX_REQUESTS, check_histogram, read_histogram


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
    for line, said in (
        ("0", "the size 0 is not an integer from 1"),
        ("-4", "the size -4 is not an integer from 1"),
        ("nan", "the size 'nan' is not"),
        ("1.5", "the size '1.5' is not"),
        ("1e3", "the size '1e3' is not"),
        ("\u0665", "the size '\u0665' is not"),
        (str(MAX_SIZE + 1), f"the size {MAX_SIZE + 1} is not"),
        ("9" * 200, "the size '9999"),
        ("size,count", "the size 'size' is not"),
        ("560,", "the count '' is not an integer from 0"),
        ("560,-1", "the count -1 is not"),
        ("560,inf", "the count 'inf' is not"),
        (f"560,{MAX_REQUESTS + 1}", f"the count {MAX_REQUESTS + 1} is not"),
        ("560,1,2", "3 columns instead of size,count"),
        ('{"size": 560.0}', "the size 560.0 is not"),
        ('{"size": true}', "the size True is not"),
        ('{"size": "560"}', "the size '560' is not"),
        ('{"size": 560, "count": NaN}', "the count nan is not"),
        ('{"size": 560, "n": 2}', "has other fields than size and count"),
        ('{"count": 2}', "has other fields than size and count"),
        ('{"size": 560, "size": 570}', "a field is given twice"),
        ('{"size": {"a": 1}}', "the size {'a': 1} is not"),
        ('{"size": 560', "is not JSON"),
        ("[560, 2]", "the size '[560' is not"),
        ("5" * (MAX_LINE_BYTES + 1), f"longer than {MAX_LINE_BYTES} bytes"),
    ):
        with pytest.raises(SettingsError) as raised:
            read(f"560,2\n\n{line}\n1024,1\n")
        where, _, what = str(raised.value).partition(": ")
        assert (where, said in what) == ("--histogram standard input, line 3", True), (line, said)


def test_different_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest, "MAX_SIZES", 2)
    with pytest.raises(SettingsError, match="line 4: more than 2 different sizes"):
        read("5\n6\n5\n7\n")
    with pytest.raises(SettingsError, match="more than 2 sizes"):
        check_histogram({5: 1, 6: 1, 7: 1})


def test_bad_counts_of_a_program_are_named() -> None:
    for counts, said in (
        ({}, "has no size"),
        ({560: 0}, "has no size"),
        ({0: 1}, "0: 1 is no size with its count"),
        ({560: -1}, "560: -1 is no size with its count"),
        ({560.0: 1}, "560.0: 1 is no size with its count"),
        ({True: 1}, "True: 1 is no size with its count"),
        ({560: MAX_REQUESTS + 1}, "is no size with its count"),
    ):
        with pytest.raises(SettingsError, match=said):
            check_histogram(counts)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_histogram_or_a_settings_error(data: bytes) -> None:
    try:
        counts = read_histogram(io.BytesIO(data))
    except SettingsError:
        return
    assert all(size > 0 and count > 0 for size, count in counts.items())
