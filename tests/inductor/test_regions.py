"""Regions of GEMMs: cut out of graphs lowered for a stated H100, made into modules, compiled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from warmup.core.rows import Family, Method, Winner
from warmup.core.trial import Region, TensorSpec, Trial, trial_from_json, trial_to_json
from warmup.inductor.gemm.regions import module_of, region_of, whole_region_of
from warmup.keys.gemm import at_upper_end

pytest.importorskip("triton")

PROGRAM = "cuda_regions.py"
GATE = "mm m=64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=silu,mul(bf16[64,512])"
UP = "mm m=64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=mul(bf16[64,512])"
DOWN = "mm m=64 n=256 k=512 bf16 a=row b=row out=bf16 | epilogue=none"
GELU = "addmm m=64 n=512 k=256 bf16 a=row b=row bias=1d out=bf16 | epilogue=gelu_tanh"
RANGED = ("gelu", "gated", "residual", "fp8")
FIXED = (*RANGED, "whole", "quantized", "int8", "gelu_gated", "attention")
UNALIGNED = ("linear", "unaligned gate", "conv1d", "shared", "batched")
CAST = "prims.convert_element_type.default"
CPU = torch.device("cpu")
Ask = Callable[..., dict[str, Any]]
Cut = dict[str, Any]


def cuts(ask: Ask, case: str, **words: Any) -> dict[str, Cut]:
    return {cut["key"]: cut for cut in ask(case=case, **words)["regions"]}


# -- cut on a stated H100 ----------------------------------------------------------------------


def test_a_region_has_the_key_of_its_gemm(ask: Ask) -> None:
    regions = [cut for name in FIXED for cut in cuts(ask, name).values() if cut["steps"]]
    assert len(regions) == 11
    assert [cut["key"] for cut in regions if cut["key"] not in cut["again"]] == []


def test_a_region_of_a_range_has_the_sizes_of_its_bucket(ask: Ask) -> None:
    """It equals that of the static model with the bucket's rows, and guards on no size."""
    for name in RANGED:
        ranged, fixed = cuts(ask, name, ranged=True), cuts(ask, name)
        assert ask(case=name, ranged=True)["guards"] == [], name
        assert all("m=33..64 " in key for key in ranged), name
        assert {at_upper_end(key): cut["steps"] for key, cut in ranged.items()} == {
            key: cut["steps"] for key, cut in fixed.items()
        }, name
        for key, cut in ranged.items():
            assert cut["steps"] is None or at_upper_end(key) in cut["again"], name


def test_an_activation_is_in_the_region(ask: Ask) -> None:
    """The region reaches from the GEMM to the cast back to its dtype, which is the output."""
    found = cuts(ask, "gelu")[GELU]
    assert found["steps"][0] == "aten.addmm.default"
    assert "aten.tanh.default" in found["steps"]
    assert found["outputs"] == [CAST]


def test_the_region_of_a_gate_has_both_products(ask: Ask) -> None:
    """Only one GEMM can fuse the multiplication, so each region contains both."""
    gated = cuts(ask, "gated")
    assert [sorted(gated[key]["again"]) for key in (GATE, UP)] == [sorted([GATE, UP])] * 2
    # Else the other product's kernel would fuse a GELU that its region was measured without.
    gate = {key: cut for key, cut in cuts(ask, "gelu_gated").items() if "n=512 " in key}
    assert len(gate) == 2
    assert [sorted(cut["again"]) for cut in gate.values()] == [sorted(gate)] * 2


def test_a_product_with_nothing_to_fuse_has_no_region(ask: Ask) -> None:
    """There is none for a model's last GEMM, nor for a GEMM with the sum before a norm as bias."""
    alone = [*cuts(ask, "whole").values(), *cuts(ask, "residual").values()]
    assert [cut["steps"] for cut in (*alone, cuts(ask, "gated")[DOWN])] == [None] * 4


# -- of unaligned products, padded or not ------------------------------------------------------


def question(ask: Ask, case: str, words: str) -> Cut:
    """Return the question of a case whose key begins with *words*."""
    questions = ask(case=case, pads=True)["questions"]
    (found,) = (one for one in questions if one["key"].startswith(words))
    assert isinstance(found, dict)
    return found


@pytest.mark.long
def test_a_region_is_decided_by_the_question_of_its_model(ask: Ask) -> None:
    """It runs the GEMMs of its model; a gate's region has both products, so that it is left out."""
    for case in UNALIGNED:
        found = ask(case=case, pads=True)
        assert found["questions"], case
        for way in ("as_is", "padded"):
            for one in found["questions"]:
                assert (one["reason"], one["key"] in one["keys"]) == ("", True), (way, case)
                decided = {f"{key} -> {way}" for key in one["keys"]}
                assert decided & set(one[way]["hits"]), (way, case)
            asked = sorted(key for one in found["questions"] for key in one[way]["gemms"])
            assert asked == found["whole"][way] or case == "unaligned gate", (way, case)


@pytest.mark.long
def test_the_other_product_of_a_gate_stays_as_its_own_row_says(ask: Ask) -> None:
    """Both are in the region of either; only the one in question is padded there."""
    gate = question(ask, "unaligned gate", "pad mm m=560 n=3420")
    assert gate["as_is"] == question(ask, "unaligned gate", "pad addmm")["as_is"]
    assert [key for key in gate["padded"]["gemms"] if " n=3420 " in key] == [
        key for key in gate["as_is"]["gemms"] if key.startswith("addmm")
    ]


@pytest.mark.long
def test_what_makes_an_operand_is_in_its_region(ask: Ask) -> None:
    """The gate's operations compute the operand, and its padding is fused into them."""
    steps = question(ask, "unaligned gate", "pad mm m=560 n=1280")["steps"]
    assert "aten.exp.default" in steps[: steps.index("aten.mm.default")]
    assert steps[-1] == "aten.add.Tensor"
    # Its reduction too, though it has two results, so that the region starts at its input.
    steps = question(ask, "conv1d", "pad addmm")["steps"]
    assert "aten.var_mean.correction" in steps[: steps.index("aten.addmm.default")]
    # The normed activation is written for the other product too; what it is made of is not.
    key = question(ask, "shared", "pad mm m=560 n=772")
    assert key["outputs"] == [CAST, "aten.relu.default"]
    assert key["steps"].count(CAST) == 2


@pytest.mark.long
def test_a_module_made_of_a_pad_key_asks_for_that_key(ask: Ask) -> None:
    """Its region runs the GEMM as it is, and padded to multiples of 8 (4 in f32) without rows."""
    for key in (
        "pad mm m=560 n=1280 k=3420 bf16 a=row b=col",
        "pad mm m=560 n=1280 k=3420 bf16 a=row b=row free=a",
        "pad addmm m=560 n=1284 k=3420 f16 a=row b=col bias=1d free=a",
        "pad mm m=1604 n=1284 k=3421 f32 a=col b=row free=b fp32=ieee",
        "pad bmm batch=4 m=560 n=772 k=1284 bf16 a=row b=row free=ab",
    ):
        (one,) = ask(case=key, pads=True)["questions"]
        assert (one["key"], one["reason"]) == (key, "")
        asked = [text for text in one["padded"]["gemms"] if text not in one["as_is"]["gemms"]]
        sizes = [int(text) for text in re.findall(r" [nk]=([0-9]+)", asked[0])]
        assert [size % (4 if " f32 " in key else 8) for size in sizes] == [0, 0], key


# -- compiled in each way ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(conversation: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """What is compiled for a region: the library's kernel, and a template fused and not fused."""
    with conversation("cuda_region_ways.py", tmp_path_factory.mktemp("ways")) as compile_ways:
        yield compile_ways


@pytest.mark.long
def test_the_kernels_of_a_region_are_counted_in_each_way(compiled: Ask) -> None:
    """An activation saves a kernel; a residual only moves from the norm's kernel to the GEMM's.

    Spills and registers are read from the loaded template; a library call has none. What is
    compiled ahead is compiled once.
    """
    for case, counts in (("gelu", [2, 1, 2]), ("residual, then a norm", [2, 2, 2])):
        ways = compiled(case=case, number=0)
        assert [way["count"] for way in ways] == counts, case
        assert all(way["is_as_decided"] for way in ways), case
    ways, ahead = (compiled(case="gelu", number=0, is_ahead=each) for each in (False, True))
    found = [(way["spills"], way["registers"]) for way in ways]
    assert found == [(None, None), (0, 32), (0, 32)]
    assert [way.pop("lowered") for way in ways] == [1, 2, 3]
    assert [way.pop("lowered") for way in ahead] == [3, 3, 3]
    assert ahead == ways


@pytest.mark.long
def test_a_way_that_undoes_the_decision_of_another_row_is_left_out(compiled: Ask) -> None:
    """The first GEMM of a gated MLP has the gate; the second is compiled without it only."""
    _, fused, apart = compiled(case="gated", number=1, known=True)
    assert (fused["is_as_decided"], apart["is_as_decided"]) == (False, True)
    assert "inductor does not fuse as decided for mm m=1024" in fused["error"]
    assert apart["count"] == 2


# -- cut out of graphs on a CPU ----------------------------------------------------------------


def _inputs(m: int, n: int) -> tuple[torch.Tensor, ...]:
    source = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=source) for shape in ((m, 32), (32, n), (m, n)))


def _cut(function: Callable[..., Any], inputs: Any, *, whole: bool = False) -> Region:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    (gemm, *_) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    region = whole_region_of(gemm) if whole else region_of(gemm, (), has_epilogue=True)
    assert region is not None
    return region


def _two_outputs(x: Any, w: Any, r: Any) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ w) + r
    return y, y.amax(-1) @ r


def _normed(x: Any, w: Any, r: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the deviation of each row from its mean, over its own variance, after a residual."""
    y = x @ w + r
    variance, mean = torch.var_mean(y, -1, correction=0, keepdim=True)
    return y, (y - mean) * torch.rsqrt(variance + 1e-5)


def _normed_with_mean(x: Any, w: Any, r: Any) -> tuple[torch.Tensor, torch.Tensor]:
    y, normed = _normed(x, w, r)
    return normed, torch.var_mean(y, -1)[1]


def test_the_module_of_a_region_computes_what_the_graph_does() -> None:
    """Every value used outside the region is an output: here the sum and its reduction."""
    inputs = _inputs(16, 16)
    region = _cut(_two_outputs, inputs)
    summed, largest = module_of(region, CPU)(*inputs)
    expected = torch.relu(inputs[0] @ inputs[1]) + inputs[2]
    torch.testing.assert_close((summed, largest.squeeze(0)), (expected, expected.amax(-1)))
    # A norm, whose variance and mean come from one operator, is in the region.
    region = _cut(_normed, inputs)
    assert [step.target for step in region.steps].count("aten.var_mean.correction") == 1
    torch.testing.assert_close(module_of(region, CPU)(*inputs), _normed(*inputs))
    # Where its mean is read elsewhere the region ends before it: that would be no output.
    region = _cut(_normed_with_mean, inputs)
    assert [step.target for step in region.steps] == ["aten.mm.default", "aten.add.Tensor"]


def test_a_region_survives_the_way_to_another_process() -> None:
    for function in (_two_outputs, _normed):
        region = _cut(function, _inputs(8, 8))
        library = Winner(Family.EXTERN, "aten::mm")
        trial = Trial(
            key="k",
            op="mm",
            device="cpu",
            operands=region.inputs,
            views=(),
            out=TensorSpec((1,), (1,), 0, "float32"),
            candidates=(),
            library=library,
            method=Method(),
            region=region,
            options={"freezing": True},
            known=(("other", library),),
        )
        assert trial_from_json(json.loads(json.dumps(trial_to_json(trial)))) == trial


def test_only_operators_of_torch_are_made() -> None:
    """A step that names no operator of torch.ops.aten or prims is refused."""
    region = _cut(_two_outputs, _inputs(8, 8))
    for target in ("aten.mm", "os.system.default", "aten.__class__.x", "a b.c.d"):
        bad = Region(region.inputs, (type(region.steps[0])(target, (), {}),), (0,), (1,))
        with pytest.raises(ValueError, match="not an operator of torch"):
            module_of(bad, CPU)
