"""Sizes, dims and inputs as the command line writes them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmup.core.buckets import (
    MAX_BUCKETS,
    Bucket,
    InputSpec,
    parse_buckets,
    parse_inputs,
    parse_sizes,
)
from warmup.core.errors import SettingsError

HUGE = "9" * 5000


def test_what_is_no_positive_integer_is_refused() -> None:
    """Anything but positive decimal integers below 2**31 is a SettingsError that names the flag."""
    for text in (
        *("", " ", ",", "560,", "0", "-1", "+1", "1.5", "1e3", "0x10", "1_000", "a", "None"),
        *("\u0665\u0666\u0660", "²", "560 1024", "560;1024", "560\n1024", str(2**31), HUGE),
    ):
        with pytest.raises(SettingsError, match=r"^--seqlens: .* is not a positive integer"):
            parse_sizes(text, "--seqlens")


def test_a_range_doubles_or_steps_to_its_end() -> None:
    """Sizes double or grow by the step, the last is the end of the range; lists keep order."""
    for text, sizes in (
        ("1,2,4..64", (1, 2, 4, 8, 16, 32, 64)),
        ("4..100", (4, 8, 16, 32, 64, 100)),
        ("3..24", (3, 6, 12, 24)),
        ("5..5", (5,)),
        ("5..6", (5, 6)),
        ("128..512:128", (128, 256, 384, 512)),
        ("100..1000:300", (100, 400, 700, 1000)),
        ("100..900:300", (100, 400, 700, 900)),
        ("5..9:100", (5, 9)),
        ("5..5:1", (5,)),
        (" 4 .. 16 , 100 .. 300 : 100 ", (4, 8, 16, 100, 200, 300)),
        ("2048,4..16,1", (2048, 4, 8, 16, 1)),
        (" 2048, 560 ,1024", (2048, 560, 1024)),
    ):
        assert parse_sizes(text, "--seqlens") == sizes


LARGEST_SIZE = 2**31 - 1
# The smallest step at which every range keeps to the limit, whichever its ends are.
LEAST_STEP = -(-(LARGEST_SIZE - 1) // (MAX_BUCKETS - 1))
SIZES = st.integers(1, LARGEST_SIZE)


@given(SIZES, SIZES, st.none() | st.integers(LEAST_STEP, LARGEST_SIZE))
@example(1, LARGEST_SIZE, LEAST_STEP)
def test_a_range_covers_its_ends(one: int, other: int, step: int | None) -> None:
    """A range ascends from its start to its end, in gaps of the step or of the size before."""
    start, end = sorted((one, other))
    sizes = parse_sizes(f"{start}..{end}{'' if step is None else f':{step}'}", "--seqlens")
    gaps = [b - a - (a if step is None else step) for a, b in itertools.pairwise(sizes)]
    assert (sizes[0], sizes[-1]) == (start, end)
    assert sizes == tuple(sorted(set(sizes)))
    assert (set(gaps[:-1]) <= {0}, all(gap <= 0 for gap in gaps)) == (True, True)


def test_a_misspelled_range_is_named() -> None:
    for text, said in (
        ("8..4", "the range '8..4' starts above its end"),
        ("1,8..4:2", "the range '8..4:2' starts above its end"),
        ("4..", "'' in '4..' is not a positive integer"),
        ("..4", "'' in '..4' is not a positive integer"),
        ("0..4", "'0' in '0..4' is not a positive integer"),
        ("4...8", "'.8' in '4...8' is not a positive integer"),
        ("4..8..16", "'8..16' in '4..8..16' is not a positive integer"),
        ("4..8:0", "'0' in '4..8:0' is not a positive integer"),
        ("4..8:", "'' in '4..8:' is not a positive integer"),
        ("4..8:2:2", "'2:2' in '4..8:2:2' is not a positive integer"),
        ("4:8", "'4:8' is not a positive integer"),
        ("4..x", "'x' in '4..x' is not a positive integer"),
        ("4..-8", "'-8' in '4..-8' is not a positive integer"),
        (f"1..{2**31}", f"'{2**31}' in '1..{2**31}' is not a positive integer below {2**31}"),
        ("1..8,8..16", "8 is given more than once"),
        ("1..64,4,8,16,1,2,32", "1, 2, 4, 8, 16 and 1 more are given more than once"),
    ):
        with pytest.raises(SettingsError) as raised:
            parse_sizes(text, "--seqlens")
        assert str(raised.value).startswith(f"--seqlens: {said};"), (text, said)


def test_ranges_of_too_many_sizes_are_refused() -> None:
    """Sizes past the limit are counted and refused before they are made."""
    for text in (f"1..{2**31 - 1}:1", f"1..{MAX_BUCKETS + 1}:1", f"1..{MAX_BUCKETS}:1,5000"):
        with pytest.raises(SettingsError, match=f"more than {MAX_BUCKETS}"):
            parse_sizes(text, "--seqlens")
    # As many sizes as the limit are taken.
    assert len(parse_sizes(f"1..{MAX_BUCKETS}:1", "--seqlens")) == MAX_BUCKETS


def test_forms_of_the_same_buckets_are_equal() -> None:
    """Ranges and lists, text and numbers; sizes without a name are those of ``seqlen``."""
    expected = Bucket((("seqlen", 560),)), Bucket((("seqlen", 1024),))
    assert parse_buckets("560,1024", None) == parse_buckets([560, 1024], None) == expected
    ranges = parse_buckets(None, "batch=1..4;seqlen=128..384:128")
    assert ranges == parse_buckets(None, "batch=1,2,4;seqlen=128,256,384")


def test_dims_make_their_product() -> None:
    """Several dims make every combination, the last one fastest, and --seqlens comes last."""
    buckets = parse_buckets("7,9", "batch=1,8")
    assert [str(bucket) for bucket in buckets] == [
        "batch=1,seqlen=7",
        "batch=1,seqlen=9",
        "batch=8,seqlen=7",
        "batch=8,seqlen=9",
    ]


def test_dims_that_bind_nothing_or_twice_are_refused() -> None:
    for seqlens, dims, said in (
        (None, None, "no bucket is given"),
        (None, "", "no bucket is given"),
        (None, "batch", "does not bind a dim"),
        (None, "=1", "does not bind a dim"),
        (None, "1a=1", "does not bind a dim"),
        (None, "bätch=1", "does not bind a dim"),
        (None, "batch=1;", "does not bind a dim"),
        (None, "batch=", "--dims batch: '' is not a positive integer"),
        (None, "batch=0", "--dims batch: '0' is not a positive integer"),
        (None, "batch=1;batch=2", "'batch' is bound twice"),
        ("560", "seqlen=560", "bound by --seqlens and by --dims"),
        (None, "a=1=2", "--dims a: '1=2' is not a positive integer"),
    ):
        with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
            parse_buckets(seqlens, dims)


def test_too_many_buckets_are_refused() -> None:
    sizes = ",".join(map(str, range(1, 1001)))
    with pytest.raises(SettingsError, match=f"more than {MAX_BUCKETS}"):
        parse_buckets(sizes, ";".join(f"d{index}={sizes}" for index in range(20)))


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_binds_dims_or_is_a_settings_error(seqlens: str, dims: str) -> None:
    try:
        buckets = parse_buckets(seqlens, dims)
    except SettingsError:
        return
    assert all(size > 0 for bucket in buckets for _, size in bucket.sizes)


def test_inputs_are_parsed() -> None:
    """An input has a name, dims by name or size, and a dtype unless left out."""
    assert parse_inputs(["hidden_states=[seqlen, 3420]:bf16", "scale=[]", "ids=[1,seqlen]"]) == (
        InputSpec("hidden_states", ("seqlen", 3420), "bf16"),
        InputSpec("scale", (), None),
        InputSpec("ids", (1, "seqlen"), None),
    )


def test_a_misspelled_input_is_refused() -> None:
    """Text that is not NAME=[DIM,...]:DTYPE is a SettingsError that quotes it."""
    for text in (
        *(
            "",
            "x",
            "x=",
            "x=[",
            "x=1,2",
            "x=[1,2",
            "x=[1,,2]",
            "x=[1,]",
            "x=[,]",
            "x=[0]",
            "x=[-1]",
        ),
        *("x=[1.5]", "x=[\u0665]", "x=[²]", "x=[a b]", "x=[a-b]", "x=[1]:", "x=[1]:bf16:f16"),
        *("x=[1]bf16", "=[1]", "1x=[1]", "é=[1]", "x=[[1]]", "x=[1]\ny=[1]", f"x=[{HUGE}]"),
    ):
        with pytest.raises(SettingsError, match="is not NAME"):
            parse_inputs([text])


@given(st.from_regex(r"\A\w*=\[[^\n]{0,20}\](:\w*)?\Z"))
def test_any_text_is_an_input_or_a_settings_error(text: str) -> None:
    try:
        (spec,) = parse_inputs([text])
    except SettingsError:
        return
    assert all(isinstance(dim, str) or dim > 0 for dim in spec.dims)


def test_a_shape_takes_named_sizes_from_the_bucket() -> None:
    bucket = Bucket((("batch", 8), ("seqlen", 560)))
    assert InputSpec("x", ("batch", "seqlen", 64), None).shape(bucket) == (8, 560, 64)
    # An unbound dim is named.
    with pytest.raises(SettingsError, match="--input x: nothing binds the dim 'batch'"):
        InputSpec("x", ("batch",), None).shape(Bucket((("seqlen", 560),)))
