"""Rebuilt modules: they compute what the key says; a key that cannot be rebuilt is an error."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

from warmup.core.errors import ProblemError
from warmup.keys.gemm import GemmProblem
from warmup.measuring.reference import full_precision
from warmup.models.loading import make_inputs
from warmup.models.rebuilt import precision_of, rebuild

CPU = torch.device("cpu")
SCALED = "scaled_mm m=32 n=16 k=64 f8_e4m3fn a=row b=col"
ROWS = "f32[32,1]:f32[1,16]"
LINEAR = "m=4 n=3 k=2 f32 a=row b=packed out=f32 fp32=ieee | epilogue"
EXPERTS = "grouped_mm groups=4 over=m m=64 n=32 k=16 bf16 a=row b=col out=bf16"

Given = dict[str, torch.Tensor]


def run(key: str) -> tuple[torch.Tensor, Given]:
    """Return the output of the module for *key*, and its operands by name."""
    rebuilt = rebuild(key, CPU)
    model, bucket = rebuilt.model, rebuilt.bucket
    inputs = make_inputs(model, (), bucket, CPU, None)
    names = {**dict(zip(model.module.names, inputs.args, strict=True))}
    if model.module.weight is not None:
        names["b"] = model.module.weight
    return model.module(*inputs.args), names


FORMULAS: dict[str, Callable[[Given], torch.Tensor]] = {
    f"packed_linear {LINEAR}=gelu_tanh": lambda t: torch.nn.functional.gelu(
        t["a"] @ t["b"].T, approximate="tanh"
    ),
    f"packed_linear {LINEAR}=mul(sin(x),x)": lambda t: (
        (t["a"] @ t["b"].T).sin() * (t["a"] @ t["b"].T)
    ),
    f"packed_linear {LINEAR}=sub(2,x),pow(2)": lambda t: (2 - t["a"] @ t["b"].T) ** 2,
    "addmm m=4 n=3 k=2 f32 a=row b=col bias=1d alpha=2 beta=0.5 out=f32 | epilogue=relu": (
        lambda t: torch.relu(0.5 * t["bias"] + 2 * t["a"] @ t["b"])
    ),
    "baddbmm batch=2 m=4 n=3 k=5 f32 a=row b=row bias=bn out=f32 | epilogue=none": lambda t: (
        t["bias"] + t["a"] @ t["b"]
    ),
    "bmm batch=2 m=4 n=3 k=5 f32 a=row b=row out=f32 | epilogue=mul(f32[8,3]),add(f32[3])": (
        lambda t: (t["a"] @ t["b"]) * t["0"] + t["1"]
    ),
    "mm_plus_mm m=4 n=3 k=5 f32 a=row b=row a2=col b2=row out=f32 | epilogue=none": lambda t: (
        t["a"] @ t["b"] + t["a2"] @ t["b2"]
    ),
    "int_mm m=32 n=16 k=24 i8 a=row b=col out=i32 | epilogue=mul(f32[32,1]),to(bf16)": lambda t: (
        t["a"].int() @ t["b"].int() * t["0"]
    ).to(torch.bfloat16),
}


def test_every_op_and_its_epilogue_are_computed() -> None:
    for key, formula in FORMULAS.items():
        output, given = run(key)
        torch.testing.assert_close(output, formula(given), msg=key)


def test_a_scaled_product_has_the_scales_of_its_key() -> None:
    """The result is of the size of its scales, and the product of what 8 bits stand for."""
    for scale, sizes in (
        ("f32[]:f32[]", ((), ())),
        ("f32[1]:f32[1]", ((1,), (1,))),
        (ROWS, ((32, 1), (1, 16))),
    ):
        torch.manual_seed(0)
        # On the CPU torch 2.11 multiplies with one scale for each factor only.
        with full_precision() if scale == ROWS else contextlib.nullcontext():
            output, given = run(
                f"{SCALED} bias=1d scale={scale} accum=fast out=bf16 | epilogue=relu"
            )
        assert (given["scale_a"].shape, given["scale_b"].shape) == sizes, scale
        assert min(given["scale_a"].min(), given["scale_b"].min()) > 0, scale
        exact = (given["a"].float() * given["scale_a"]) @ (given["b"].float() * given["scale_b"])
        assert 0.2 < exact.std() < 20, scale
        expected = torch.relu(exact + given["bias"]).to(output.dtype)
        torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)


def test_operands_lie_as_the_key_says() -> None:
    for layouts, strides in (
        ("a=row b=row", ((10, 5, 1), (15, 3, 1))),
        ("a=row/8 b=col", ((10, 8, 1), (15, 1, 5))),
        ("a=col@0 b=col/7@99", ((0, 1, 2), (99, 1, 7))),
    ):
        _, given = run(f"bmm batch=4 m=2 n=3 k=5 f32 {layouts} out=f32 | epilogue=none")
        assert (given["a"].stride(), given["b"].stride()) == strides, layouts
    key = "linear_unary m=2..64 n=3 k=5 f32 a=row b=packed out=f32 | epilogue=mul(f32[s,3])"
    _, given = run(key)
    marks = {(given[name].shape, given[name]._dynamo_dynamic_indices == {0}) for name in ("a", "0")}
    assert marks == {(torch.Size([64, 5]), True), (torch.Size([64, 3]), True)}


def test_a_key_that_cannot_be_rebuilt_is_an_error() -> None:
    mm = "mm m=4 n=3 k=2 f32 a=row b=row out=f32 | epilogue=none"
    for key, reason in (
        (f"packed_linear {LINEAR}=frobnicate", "frobnicate is unknown"),
        (f"packed_linear {LINEAR}=load", "load is unknown"),  # torch has one
        (f"packed_linear {LINEAR}=~0123456789ab", "cannot be read back"),
        (f"packed_linear {LINEAR}=mul(s)", "has the dtype s"),
        (f"packed_linear {LINEAR}=mul(f32[5,7])", "other dims"),
        (f"packed_linear {LINEAR}=mul(f32[s,3])", "does not name"),
        (mm.replace("m=4", "m=2.."), "no upper end"),
        (mm.replace("a=row", "a=any(1,9)"), "layout any(1,9)"),
        (mm.replace("a=row", "a=row/2..8"), "2..8 is dynamic"),
        (mm.replace("a=row", "a=row/99999999999999999999"), "out of range"),
        (mm.replace("f32 a", "f32 dtype_b=f16 a"), "two dtypes"),
        (mm.replace("f32", "f4"), "has the dtype f4"),
        (mm.replace("m=4 n=3 k=2", "m=999999999 n=3 k=999999"), "GiB"),
        (f"{SCALED} scale=f32[32,2]:f32[1,16] out=bf16 | epilogue=none", "scales of blocks"),
        (f"{SCALED} scale=f8_e8m0fnu[32]:f32[] out=bf16 | epilogue=none", "cannot be rebuilt"),
        ("addmm m=4 n=3 k=2 f32 a=row b=row bias=q out=f32 | epilogue=none", "bias=q"),
        (EXPERTS.replace("out=bf16", "out=f32"), "a result in f32"),
    ):
        with pytest.raises(ProblemError) as caught:
            run(key)
        assert reason in str(caught.value), key
    with pytest.raises(ProblemError, match="exists on the CPU only"):
        rebuild(f"packed_linear {LINEAR}=none", torch.device("cuda"))


def test_an_operand_with_three_dims_is_read_beside_a_view() -> None:
    """As in a model that adds [batch, 1, width] to its linear, whose product has two dims."""
    for operand, view in (
        ("f32[4,1,3]", [4, 1, 3]),
        ("f32[2,2,1]", [2, 2, 3]),
        ("f32[4,3]", None),
        ("f32[3]", None),
    ):
        output, given = run(f"packed_linear {LINEAR}=add({operand})")
        product = given["a"] @ given["b"].T
        viewed = product if view is None else product.view(view)
        torch.testing.assert_close(output, viewed + given["0"])
        sizes = [int(size) for size in re.findall(r"\d+", operand[3:])]
        assert list(given["0"].shape) == sizes, operand
    ranged = rebuild(f"packed_linear {LINEAR}=add(f32[s,1,3])".replace("m=4", "m=2..8"), CPU)
    assert ranged.model.module(torch.ones(5, 2), torch.ones(5, 1, 3)).shape == (5, 1, 3)


def test_the_precision_is_that_of_the_key_and_then_what_it_was() -> None:
    """Inside, float32 products are computed as the key says, also after an error of the caller.

    Torch has one precision for all backends inside: inductor asks for it while it lowers, which is
    torch's error where backends disagree. An unknown precision is refused.
    """
    key = "mm m=4 n=3 k=2 f32 a=row b=row out=f32 fp32={} | epilogue=none"
    matmul = torch.backends.mkldnn.matmul
    for precision in ("bf16", "ieee"):
        before = matmul.fp32_precision
        with precision_of(GemmProblem.of_key(key.format(precision)), CPU):
            inside = matmul.fp32_precision
        assert (inside.replace("none", "ieee"), matmul.fp32_precision) == (precision, before)
    on_gpu = torch.backends.cuda.matmul
    before, before_all = on_gpu.fp32_precision, torch.get_float32_matmul_precision()

    def fail() -> None:
        assert torch.get_float32_matmul_precision() == "high"
        assert on_gpu.allow_tf32
        raise RuntimeError("of the caller")

    gpu = precision_of(GemmProblem.of_key(key.format("tf32")), torch.device("cuda"))
    with pytest.raises(RuntimeError, match="of the caller"), gpu:
        fail()
    assert (on_gpu.fp32_precision, torch.get_float32_matmul_precision()) == (before, before_all)
    assert not on_gpu.allow_tf32
    other = GemmProblem.of_key(key.format("other"))
    with pytest.raises(ProblemError, match="fp32=other"), precision_of(other, CPU):
        pass


@pytest.mark.long
def test_a_rebuilt_mm_keeps_the_add_that_follows_it() -> None:
    """Inductor would fold it into an addmm, which has another key; in the settings it does not."""
    rebuilt = rebuild("mm m=2 n=4 k=3 f32 a=row b=row out=f32 | epilogue=add(f32[2,4])", CPU)
    inputs = rebuilt.model.example_inputs()

    def calls() -> list[str]:
        torch.compiler.reset()
        with torch.no_grad(), inductor_config.patch(fx_graph_cache=False):
            _, (code,) = run_and_get_code(torch.compile(rebuilt.model.module), *inputs)
        return re.findall(r"extern_kernels\.(\w+)\(", code)

    assert calls() == ["addmm"]
    with rebuilt.settings():
        assert calls() == ["mm"]


def test_a_grouped_module_multiplies_each_group_by_its_weights() -> None:
    rebuilt = rebuild(EXPERTS, CPU)
    x, weights, ends = rebuilt.model.example_inputs()
    starts = [0, *ends.tolist()]
    parts = [x[low:high] @ weights[i] for i, (low, high) in enumerate(itertools.pairwise(starts))]
    result = rebuilt.model.module(x, weights, ends)
    torch.testing.assert_close(result, torch.cat(parts), rtol=2e-2, atol=2e-2)
