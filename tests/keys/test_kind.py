"""What a row kind says of its keys: how they are printed, their order, and inductor's hooks."""

from __future__ import annotations

from dataclasses import replace

from sample_tables import make_key

from warmup.keys.kind import Kind, natural_order
from warmup.keys.registry import ingredients_of, kind_of

TOY = "toy cat m=1..8 n=4 via=sum f32 tag=7"
GEMM = "addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=gelu_tanh"
LAUNCH = "launch triton_poi_fused_mul x=4096 y=8 args=*bf16,i32 source=3f2a9c0d41b7e865"
PAD = "pad bmm batch=4 m=560 n=1280 k=3420 bf16 a=row b=col free=a"
WEIGHT = "weight chain m=560 in=64,64 features=99 out=64 bf16 bias=111 via=mul(p0,p1)"
LABELS = {
    TOY: "cat m=1..8 n=4 f32",
    GEMM: "addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16",
    LAUNCH: "triton_poi_fused_mul x=4096 y=8",
    PAD: "bmm batch=4 m=560 n=1280 k=3420 bf16 a=row b=col free=a",
    WEIGHT: "chain m=560 in=64,64 features=99 out=64 bf16 bias=111",
}
BRIEF = {**LABELS, GEMM: "addmm 1280x3420", PAD: "bmm 1280x3420"}


def test_labels_and_briefs_follow_the_kind(toy_kind: Kind) -> None:
    for key, text in LABELS.items():
        assert kind_of(key).label(key) == text
    # Products are printed with their op and weight; a kind without a format as their label.
    for key, text in BRIEF.items():
        assert kind_of(key).brief(key) == text
    # A brief format names ingredients and words.
    assert replace(toy_kind, brief_format="{dtype}#{tag}").brief(TOY) == "f32#7"


def test_ingredients_are_named_in_key_order(toy_kind: Kind) -> None:
    """Words without a name get those of the kind, at their place among the others."""
    assert list(ingredients_of(TOY).items()) == [
        *(("kind", "toy"), ("op", "cat"), ("m", "1..8"), ("n", "4")),
        *(("via", "sum"), ("dtype", "f32"), ("tag", "7")),
    ]


def test_sizes_are_in_numeric_order() -> None:
    keys = map(make_key, ("128", "16", "16..128", "2"))
    sizes = [ingredients_of(key)["m"] for key in sorted(keys, key=natural_order)]
    assert sizes == ["2", "16", "16..128", "128"]
