"""Keys of kind ``weight``: their ingredients, the sizes that a build tries, and winners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from warmup.core.errors import ProblemError
from warmup.keys.gemm import Dim
from warmup.keys.pad import WEIGHT, Structure, padded_sizes, parse_weight
from warmup.keys.registry import kind_of

CHAIN = Structure(
    inputs=(1280, 1280),
    features=3420,
    outputs=(1280,),
    dtype="bf16",
    biases=(True, True, False),
    via="mul(silu(p0),p1)",
)
HEAD = Structure(inputs=(768,), features=50257, outputs=(), dtype="bf16", biases=(False,))
PATCH = Structure(inputs=(), features=588, outputs=(1024,), dtype="bf16", biases=(True,))


def test_a_structure_has_the_documented_key_and_each_change_another() -> None:
    tail = "out=1280 bf16 bias=110 via=mul(silu(p0),p1)"
    tf32 = replace(HEAD, dtype="f32", fp32="tf32")
    for structure, rows, key in (
        (CHAIN, Dim.of(560), f"weight chain m=560 in=1280,1280 features=3420 {tail}"),
        (HEAD, Dim.of(1024), "weight n m=1024 in=768 features=50257 bf16 bias=0"),
        (PATCH, Dim(2, 64), "weight k m=2..64 features=588 out=1024 bf16 bias=1"),
        (tf32, Dim(2, None), "weight n m=2.. in=768 features=50257 f32 bias=0 fp32=tf32"),
    ):
        assert structure.key(rows) == key
        assert parse_weight(key) == (structure, rows)
        assert kind_of(key) is WEIGHT
    changes: dict[str, Any] = {
        "inputs": (1280, 1281),
        "features": 3421,
        "outputs": (1281,),
        "dtype": "f16",
        "biases": (True, True, True),
        "via": "mul(gelu(p0),p1)",
        "fp32": "tf32",
    }
    keys = {replace(CHAIN, **{name: new}).key(Dim.of(560)) for name, new in changes.items()}
    assert len(keys | {CHAIN.key(Dim.of(560))}) == len(changes) + 1


def test_what_is_no_key_is_refused() -> None:
    refused: tuple[dict[str, Any], ...] = (
        *({"dtype": "f8_e4m3fn"}, {"features": -1}),
        *({"via": via} for via in (None, "mul(p0, p1)", "p0|p1", "p" * 4096)),
        *({"biases": (True, True)}, {"biases": ()}, {"inputs": (), "outputs": ()}),
        {"inputs": (1, 2), "outputs": (), "via": None},
    )
    for changes in refused:
        with pytest.raises(ProblemError):
            replace(CHAIN, **changes).key(Dim.of(560))
    head, chain = HEAD.key(Dim.of(1)), CHAIN.key(Dim.of(1))
    for key in (
        *("weight", "weight chain", f"{head}\n", f"{chain} | epilogue=none"),
        *(head.replace("n m", "k m"), head.replace("bf16", "i8")),
        *(chain.replace("bias=110", "bias=11"), chain.replace("m=1", "m=01")),
    ):
        with pytest.raises(ProblemError):
            parse_weight(key)


def test_the_sizes_that_a_build_tries() -> None:
    """Multiples of 16 bytes, and of 64 and 128 elements where these add at most an eighth."""
    for features, dtype, sizes in (
        (3420, "bf16", (3424, 3456)),
        (50257, "bf16", (50264, 50304)),
        (51865, "f16", (51872, 51904, 51968)),
        (588, "bf16", (592, 640)),
        (588, "f32", ()),
        (3, "bf16", (8,)),
        (45, "f32", (48,)),
        (3421, "f64", (3422, 3456)),
    ):
        assert padded_sizes(features, dtype) == sizes
