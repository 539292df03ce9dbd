"""Sizes, dims and inputs as the command line spells them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.bucket import MAX_BUCKETS, Bucket, InputSpec, parse_buckets, parse_inputs, parse_sizes
from warmup.errors import SettingsError

HUGE = "9" * 5000


def test_sizes_keep_the_order_given() -> None:
    """Sizes come back as integers, in the order of the text, blanks aside."""
    assert parse_sizes(" 2048, 560 ,1024", "--seqlens") == (2048, 560, 1024)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "560,",
        "0",
        "-1",
        "+1",
        "1.5",
        "1e3",
        "0x10",
        "1_000",
        "\u0665\u0666\u0660",
        "²",
        "a",
        "560 1024",
        "560;1024",
        str(2**31),
        HUGE,
        "560\n1024",
        "None",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_positive_integer_is_refused(text: str) -> None:
    """Anything but positive decimal integers below 2**31 is a SettingsError that names the flag."""
    with pytest.raises(SettingsError, match=r"^--seqlens: .* is not a positive integer"):
        parse_sizes(text, "--seqlens")


@pytest.mark.parametrize("text", ["0" * 11 + "1" + "9" * 20, "0" * 11 + "1" + HUGE])
def test_leading_zeros_do_not_smuggle_in_a_huge_size(text: str) -> None:
    """A size past the limit is refused however many zeros stand before it."""
    with pytest.raises(SettingsError):
        parse_sizes(text, "--seqlens")


def test_the_largest_size_is_accepted() -> None:
    """The limit itself is a size."""
    assert parse_sizes(str(2**31 - 1), "--seqlens") == (2**31 - 1,)


def test_a_repeated_size_is_named() -> None:
    """A size given twice is refused, and the message says which."""
    with pytest.raises(SettingsError, match="8, 16 is given more than once"):
        parse_sizes("16,8,4,8,16", "--seqlens")


def test_seqlens_bind_seqlen() -> None:
    """`--seqlens` makes one bucket per size of the dim seqlen."""
    assert parse_buckets("560,1024", None) == (
        Bucket((("seqlen", 560),)),
        Bucket((("seqlen", 1024),)),
    )


def test_dims_make_their_product() -> None:
    """Several dims make every combination, the last one fastest, and --seqlens comes last."""
    buckets = parse_buckets("7,9", "batch=1,8")
    assert [str(bucket) for bucket in buckets] == [
        "batch=1,seqlen=7",
        "batch=1,seqlen=9",
        "batch=8,seqlen=7",
        "batch=8,seqlen=9",
    ]


@pytest.mark.parametrize(
    ("seqlens", "dims", "said"),
    [
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
    ],
)
def test_dims_that_bind_nothing_or_twice_are_refused(
    seqlens: str | None, dims: str | None, said: str
) -> None:
    """Each way to misspell --dims is a SettingsError that says what is wrong."""
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
        parse_buckets(seqlens, dims)


def test_too_many_buckets_are_refused() -> None:
    """A product of dims past the limit is refused before it is made."""
    sizes = ",".join(map(str, range(1, 1001)))
    with pytest.raises(SettingsError, match=f"more than {MAX_BUCKETS}"):
        parse_buckets(sizes, ";".join(f"d{index}={sizes}" for index in range(20)))


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_binds_dims_or_is_a_settings_error(seqlens: str, dims: str) -> None:
    """No text makes parse_buckets raise anything but a SettingsError."""
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


@pytest.mark.parametrize(
    "text",
    [
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
        "x=[1.5]",
        "x=[\u0665]",
        "x=[²]",
        "x=[a b]",
        "x=[a-b]",
        "x=[1]:",
        "x=[1]:bf16:f16",
        "x=[1]bf16",
        "=[1]",
        "1x=[1]",
        "é=[1]",
        "x=[[1]]",
        "x=[1]\ny=[1]",
    ],
)
def test_a_misspelled_input_is_refused(text: str) -> None:
    """Text that is not NAME=[DIM,...]:DTYPE is a SettingsError that quotes it."""
    with pytest.raises(SettingsError, match="is not NAME"):
        parse_inputs([text])


@pytest.mark.parametrize("dim", [str(2**31), HUGE, "0" * 11 + "1" + HUGE], ids=len)
def test_a_huge_input_size_is_refused(dim: str) -> None:
    """A size that no tensor can have is a SettingsError, not a crash or an input."""
    with pytest.raises(SettingsError):
        parse_inputs([f"x=[{dim}]"])


def test_two_inputs_cannot_feed_one_argument() -> None:
    """The second input of the same name is refused by name."""
    with pytest.raises(SettingsError, match="'x' is given twice"):
        parse_inputs(["x=[1]", "x=[2]"])


@given(st.from_regex(r"\A\w*=\[[^\n]{0,20}\](:\w*)?\Z"))
def test_any_text_is_an_input_or_a_settings_error(text: str) -> None:
    """No text makes parse_inputs raise anything but a SettingsError."""
    try:
        (spec,) = parse_inputs([text])
    except SettingsError:
        return
    assert all(isinstance(dim, str) or dim > 0 for dim in spec.dims)


def test_a_shape_takes_named_sizes_from_the_bucket() -> None:
    """Named dims take the bucket's size and numbers stay."""
    bucket = Bucket((("batch", 8), ("seqlen", 560)))
    assert InputSpec("x", ("batch", "seqlen", 64), None).shape(bucket) == (8, 560, 64)


def test_an_unbound_dim_is_named() -> None:
    """A dim that no flag binds is a SettingsError that names the input and the dim."""
    with pytest.raises(SettingsError, match="--input x: nothing binds the dim 'batch'"):
        InputSpec("x", ("batch",), None).shape(Bucket((("seqlen", 560),)))


def test_several_dims_follow_each_other() -> None:
    """Each is a product of its own; a bucket of two of them is built once."""
    buckets = parse_buckets(None, ["n=1;k=2,3", "n=1;k=3,4"])
    assert [dict(bucket.sizes)["k"] for bucket in buckets] == [2, 3, 4]


def test_sizes_can_be_numbers() -> None:
    """As `warmup.build` takes them."""
    assert parse_buckets([16, 64], None) == parse_buckets("16,64", None)
