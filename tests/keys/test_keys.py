"""Keys of every kind: how problems are spelled, what is read back, and which text is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ProblemError
from warmup.keys.convolution import ConvolutionProblem
from warmup.keys.gemm import (
    INPUT,
    Call,
    Dim,
    GemmProblem,
    Layout,
    Operand,
    ProductProblem,
    Word,
    format_number,
    parse_epilogue,
)
from warmup.keys.grouped import GroupedProblem, Over
from warmup.keys.kind import MAX_KEY_LENGTH, Kind, Problem
from warmup.keys.launch import LaunchProblem
from warmup.keys.pad import PadProblem
from warmup.keys.reduction import ReductionProblem, SplitProblem
from warmup.keys.registry import ingredients_of, kind_of

CODE: Final = "def triton_poi_fused_mul_3(in_ptr0, xnumel, XBLOCK : tl.constexpr):\n    pass\n"
BODY: Final = f"body={hashlib.sha256(b'sum of x').hexdigest()[:16]}"
SHAPES: Final = "x=8x3x518x518 w=768x3x14x14"
SIZES: Final[Mapping[str, Dim]] = {"m": Dim.of(560), "n": Dim.of(1280), "k": Dim.of(3420)}
ROW, COL = Layout("row"), Layout("col")
GEMM = GemmProblem(
    op="addmm", **SIZES, dtype="bf16", a=ROW, b=COL, out="bf16", bias="1d", epilogue="gelu_tanh"
)
PAD = PadProblem(op="addmm", **SIZES, dtype="bf16", a=ROW, b=COL, bias="1d", free="a")
EXPERTS = GroupedProblem(
    groups=8, over=Over.M, m=1024, n=28672, k=4096, dtype="bf16", a=ROW, b=COL, out="bf16"
)
PATCHES = ConvolutionProblem(
    x=((8, 3, 518, 518), (804972, 1, 1554, 3)),
    w=((768, 3, 14, 14), (588, 1, 42, 3)),
    out=((8, 768, 37, 37), (1051392, 1369, 37, 1)),
    stride=(14, 14),
    padding=(0, 0),
    groups=1,
    dtype="bf16",
)
LAUNCH = LaunchProblem.of("triton_poi_fused_mul_3", {"y": 512, "x": 8192}, ["*bf16", "i32"], CODE)
NORM = ReductionProblem(
    ops=("welford_reduce",),
    x=10960,
    r=768,
    hint="inner",
    reads=("bf16", "f32"),
    writes=("bf16",),
    body="sum of x",
)
SUM = SplitProblem(
    op="sum",
    x=8,
    r=1 << 20,
    dtype="f32",
    out="f32",
    reads=("bf16",),
    hint="inner",
    rule=128,
    is_read_again=False,
)
# The key of each problem, and a change of each of its ingredients.
PROBLEMS: Final[tuple[tuple[Problem, str, Sequence[Mapping[str, Any]]], ...]] = (
    (
        GEMM,
        "addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=gelu_tanh",
        [
            *({"op": "addmm2"}, {"batch": Dim.of(1)}, {"m": Dim.of(561)}, {"n": Dim(1280, None)}),
            *({"k": Dim(3420, 3421)}, {"dtype": "f16"}, {"dtype_b": "f8_e4m3fn"}, {"a": COL}),
            *({"b": Layout("col", Dim.of(4096))}, {"a2": ROW}, {"b2": ROW}, {"bias": None}),
            *({"scale": "f32[]:f32[]"}, {"accum": "fast"}, {"alpha": 0.5}, {"beta": 0}),
            *({"out": "f32"}, {"fp32": "tf32"}, {"reduction": "full"}, {"epilogue": "relu"}),
        ],
    ),
    (
        PAD,
        "pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d free=a",
        [
            *({"op": "mm"}, {"batch": Dim.of(4)}, {"m": Dim(2, 1024)}, {"n": Dim.of(1281)}),
            *({"k": Dim.of(3421)}, {"dtype": "f16"}, {"a": Layout("row", Dim.of(3424))}),
            *({"b": ROW}, {"bias": "2d"}, {"free": "ab"}, {"fp32": "tf32"}),
        ],
    ),
    (
        EXPERTS,
        "grouped_mm groups=8 over=m m=1024 n=28672 k=4096 bf16 a=row b=col out=bf16",
        [{"over": Over.K}, {"groups": 9}, {"a": Layout("row", Dim.of(8192))}, {"out": "f32"}],
    ),
    (
        PATCHES,
        f"convolution {SHAPES} stride=14x14 padding=0x0 groups=1 bf16 a=last b=last out=first",
        [{"stride": (14, 7)}, {"padding": (1, 1)}, {"groups": 2}, {"dtype": "f16"}],
    ),
    (
        LAUNCH,
        f"launch triton_poi_fused_mul y=512 x=8192 args=*bf16,i32 source={LAUNCH.source}",
        [{"kernel": "triton_red"}, {"sizes": (("x", 8),)}, {"args": ()}, {"source": "0" * 16}],
    ),
    (
        NORM,
        f"reduction welford_reduce x=10960 r=768 hint=inner reads=bf16,f32 writes=bf16 {BODY}",
        [
            *({"ops": ("max", "sum")}, {"x": 4096}, {"r": 769}, {"hint": "outer"}, {"reads": ()}),
            *({"writes": ("bf16", "f32")}, {"body": "sum of y"}),
        ],
    ),
    (
        SUM,
        "split sum x=8 r=1048576 f32 out=f32 reads=bf16 hint=inner rule=128 input=once",
        [
            *({"op": "max"}, {"x": 16}, {"r": 1 << 19}, {"dtype": "f64"}, {"out": "bf16"}),
            *({"reads": ("bf16", "f32")}, {"hint": "outer"}, {"rule": 64}, {"is_read_again": True}),
        ],
    ),
)


def test_a_problem_has_the_documented_key_and_each_change_another() -> None:
    for problem, key, changes in PROBLEMS:
        assert problem.key == key
        kind_of(key).check(key)
        assert kind_of(key) is problem.kind
        changed = {replace(problem, **change).key for change in changes}  # type: ignore[type-var]
        assert len({key, *changed}) == len(changes) + 1, changed


_sizes = st.integers(0, 2**31)
DIMS = _sizes.map(Dim.of) | st.builds(
    lambda low, more: Dim(low, None if more is None else low + more), _sizes, st.none() | _sizes
)
LAYOUTS = st.builds(
    Layout,
    st.sampled_from(["row", "col", "packed", "any(1,512)", "any(0..,1)"]),
    st.none() | DIMS,
    st.none() | DIMS,
)
DTYPES = st.sampled_from(["bf16", "f16", "f32", "f64", "f8_e4m3fn", "i8"])


@given(
    st.builds(
        GemmProblem,
        op=st.sampled_from(["mm", "addmm", "bmm", "linear_unary", "scaled_mm2"]),
        **dict.fromkeys(("m", "n", "k"), DIMS),
        **dict.fromkeys(("dtype", "out"), DTYPES),
        **dict.fromkeys(("a", "b"), LAYOUTS),
        **dict.fromkeys(("a2", "b2"), st.none() | LAYOUTS),
        batch=st.none() | DIMS,
        bias=st.none() | st.sampled_from(["1d", "2d", "full"]),
        **dict.fromkeys(("alpha", "beta"), st.integers(-1000, 1000).map(float)),
        fp32=st.none() | st.sampled_from(["tf32", "ieee"]),
        reduction=st.none() | st.just("full"),
        epilogue=st.sampled_from(["none", "relu", "silu,mul(bf16[m,n])", "scale(-1.5e-05)"]),
    )
    | st.builds(
        PadProblem,
        op=st.sampled_from(["mm", "addmm", "bmm"]),
        **dict.fromkeys(("m", "n", "k"), DIMS),
        dtype=DTYPES,
        **dict.fromkeys(("a", "b"), LAYOUTS),
        batch=st.none() | DIMS,
        bias=st.sampled_from([None, "scalar", "1d", "2d"]),
        free=st.sampled_from(["", "a", "b", "ab"]),
    )
)
def test_a_product_is_read_back_from_its_key(problem: ProductProblem) -> None:
    assert type(problem).of_key(problem.key) == problem
    values = ((each.name, getattr(problem, each.name)) for each in fields(problem))
    named = ingredients_of(problem.key)
    for name, value in values:
        if name in named:
            assert named[name] == (format_number(value) if isinstance(value, float) else str(value))


def test_the_source_alone_tells_kernels_apart() -> None:
    """A number inside of a name stays, and a long name, of many fused operations, is cut.

    The number at its end counts the kernels of a graph, and the code repeats it.
    """
    assert (
        LaunchProblem.of(
            "triton_poi_fused_mul_17",
            {"y": 512, "x": 8192},
            ["*bf16", "i32"],
            CODE.replace("mul_3", "mul_17"),
        )
        == LAUNCH
    )
    assert LaunchProblem.of("triton_red_fused_mean_2_pow_10", {}, [], "").kernel.endswith("2_pow")
    # A compile worker's source and a loaded kernel's differ in blank lines at their ends.
    assert LaunchProblem.of("triton_a", None, [], f"\n{CODE}\n\n").source == LAUNCH.source
    changed = LaunchProblem.of("triton_a", None, [], CODE.replace("pass", "return"))
    assert changed.source != LAUNCH.source
    assert changed.key == f"launch triton_a args=none source={changed.source}"
    assert LaunchProblem.of("triton_poi_" + "a" * 5000, {"x": 8}, ["*bf16"], CODE).key


def test_what_cannot_be_spelled_is_a_problem_error() -> None:
    long = "x" * MAX_KEY_LENGTH
    for problem, changes in (
        (GEMM, [{"op": "ADDMM"}, {"op": "add mm"}, {"op": ""}, {"dtype": "torch.bf16"}]),
        (GEMM, [{"a": Layout("diagonal")}, {"a": Layout("row", Dim.of(-1))}, {"m": Dim(-1, 5)}]),
        (GEMM, [{"alpha": float("inf")}, {"alpha": float("nan")}, {"bias": "1d out=f64"}]),
        (GEMM, [{"epilogue": each} for each in ("", "a | epilogue=b", "relu\n", "é", long)]),
        (PAD, [{"op": "baddbmm"}, {"free": "ba"}, {"free": "c"}, {"bias": "1d free=a"}]),
        (PAD, [{"m": Dim.of(-1)}, {"dtype": "torch.bfloat16"}, {"fp32": ""}]),
        (LAUNCH, [{"kernel": each} for each in ("", "triton poi", "3triton")]),
        (LAUNCH, [{"sizes": (("X", 8),)}, {"sizes": (("x", -8),)}, {"source": "0123456789ABCDEF"}]),
        (LAUNCH, [{"args": each} for each in (("*bf16 ",), ("x=1",), ("i32",) * MAX_KEY_LENGTH)]),
        (NORM, [{"hint": each} for each in ("", "Inner", "inner r=1")]),
        (SUM, [{"hint": "inner r=1"}]),
    ):
        for change in changes:
            with pytest.raises(ProblemError):
                replace(problem, **change)  # type: ignore[type-var]


def test_other_text_is_no_key() -> None:
    keys = [key for _, key, _ in PROBLEMS]
    gemm, pad, experts, patches, launch, *_ = keys
    for text in (
        *("", "mm", "pad", "pad ", "launch", "launch "),
        *(f"{key}{end}" for key in keys for end in ("\n", " ", " | epilogue=none")),
        *(f" {key}" for key in keys),
        *(key.replace(" ", "  ", 1) for key in keys),
        gemm.replace("m=560 n=1280", "n=1280 m=560"),
        *(gemm.replace("m=560", text) for text in ("m=٥٦٠", "m=-1", "m=..5")),
        *(gemm.replace(text, "") for text in ("gelu_tanh", " out=bf16", " |")),
        *(gemm.replace("gelu_tanh", text) for text in ("x y", "__import__('os')")),
        gemm.replace("a=row", "a=row/"),
        pad.replace("bf16 ", ""),
        pad.replace("bias=1d free=a", "free=a bias=1d"),
        *(experts.replace("over=m", "over=g"), experts.replace("groups=8 ", "")),
        experts.replace("m=1024", "m=2..1024"),
        *(patches.replace("groups=1 ", ""), patches.replace("a=last", "a=rows")),
        patches.replace("8x3x518x518", "8x3"),
        *(launch.replace(" source=", " hash="), launch.replace("x=8192", "x=8192..9000")),
        launch.replace(" args=*bf16,i32", ""),
    ):
        with pytest.raises(ProblemError):
            kind_of(text).check(text)


@given(st.text(max_size=80) | st.from_regex(r"[a-z]+ m=[0-9]+ n=.* \| epilogue=.*"))
def test_no_text_breaks_the_reader_of_keys(text: str) -> None:
    try:
        first = next(iter(ingredients_of(text)))
    except ProblemError:
        return
    assert first == "op"


RANGED = "mm m={} n=512 k=256 bf16 a=row b=row out=bf16 | epilogue={}"


def test_a_region_asks_for_the_upper_end_of_a_range() -> None:
    """Dynamic sizes of the epilogue too; without an end, or with two ends, a range stays."""
    strided = "mm m={0} n=512 k=256 bf16 a=any(1,{0}) b=row out=bf16 | epilogue=none"
    two = "bmm batch=2..8 m=33..64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=relu"
    for key, asked in (
        (RANGED.format("33..64", "none"), RANGED.format("64", "none")),
        (RANGED.format("33..64", "mul(bf16[s,512])"), RANGED.format("64", "mul(bf16[64,512])")),
        (RANGED.format("64", "mul(bf16[64,512])"), RANGED.format("64", "mul(bf16[64,512])")),
        (RANGED.format("2..", "relu"), RANGED.format("2..", "relu")),
        (strided.format("2..8"), strided.format("8")),
        (two, two),
    ):
        assert GemmProblem.of_key(key).at_upper_end().key == asked
    ends = replace(PAD, m=Dim(2, 560), free="").keys_in_region()
    assert ends == {replace(PAD, free=free).key for free in ("", "a", "b", "ab")}


def test_ingredients_are_named_in_key_order(toy_kind: Kind) -> None:
    """Words without a name get those of the kind, at their place among the others."""
    assert list(ingredients_of("toy cat m=1..8 n=4 via=sum f32 tag=7").items()) == [
        *(("kind", "toy"), ("op", "cat"), ("m", "1..8"), ("n", "4")),
        *(("via", "sum"), ("dtype", "f32"), ("tag", "7")),
    ]


def test_an_epilogue_is_read_as_steps() -> None:
    """Each step is a call with the input ``x``, as its first argument unless it is named."""
    bias = Operand("f32", (None, 8))
    for text, steps in (
        ("none", ()),
        ("relu", (Call("relu", (INPUT,)),)),
        (
            "gelu_tanh,mul(bf16[560,1280])",
            (Call("gelu_tanh", (INPUT,)), Call("mul", (INPUT, Operand("bf16", (560, 1280))))),
        ),
        ("mul(sin(x),x)", (Call("mul", (Call("sin", (INPUT,)), INPUT)),)),
        ("sub(f32[],x)", (Call("sub", (Operand("f32", ()), INPUT)),)),
        ("add(f32[s,8],alpha_2)", (Call("add", (INPUT, bias), (("alpha", 2.0),)),)),
        ("clamp(none,-0.5)", (Call("clamp", (INPUT, Word("none"), -0.5)),)),
        ("pow(2),to(f32)", (Call("pow", (INPUT, 2)), Call("to", (INPUT, Word("f32"))))),
        ("mul(1e-05)", (Call("mul", (INPUT, 1e-05)),)),
    ):
        assert parse_epilogue(text) == steps


def test_what_cannot_be_read_back_is_a_problem_error() -> None:
    for text in (
        *("~0123456789ab", "relu,~01(x)", "1", "bf16[2]", "f(", "f(x", "f)", "", "F(x)", "f(x)y"),
        *("f(" * 500 + "x" + ")" * 500, "mul([1.2])"),
    ):
        with pytest.raises(ProblemError):
            parse_epilogue(text)


@given(st.text(alphabet="x1.,()[]~_amul-", max_size=60))
def test_no_epilogue_breaks_the_reader(text: str) -> None:
    try:
        steps = parse_epilogue(text)
    except ProblemError:
        return
    assert all(isinstance(step, Call) for step in steps)
