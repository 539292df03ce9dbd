"""Regions of GEMMs: cut out of graphs lowered for a stated H100, and made into modules again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from warmup.core.method import Method
from warmup.core.rows import Family, Winner
from warmup.core.trial import Region, TensorSpec, Trial, trial_from_json, trial_to_json
from warmup.inductor.gemm.regions import module_of, region_of, whole_region_of
from warmup.keys.gemm import at_upper_end

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
GATE = "mm m=64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=silu,mul(bf16[64,512])"
UP = "mm m=64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=mul(bf16[64,512])"
DOWN = "mm m=64 n=256 k=512 bf16 a=row b=row out=bf16 | epilogue=none"
GELU = "addmm m=64 n=512 k=256 bf16 a=row b=row bias=1d out=bf16 | epilogue=gelu_tanh"
FP8_GATE = (
    "scaled_mm m=64 n=512 k=256 f8_e4m3fn a=row b=col scale=f32[64,1]:f32[1,512] out=bf16"
    " | epilogue=silu,mul(bf16[64,512])"
)
RANGED = ("gelu ranged", "gated ranged", "residual ranged", "fp8 ranged")
CASES = (
    *("gelu", "gated", "residual", "whole", "quantized", "fp8", "int8"),
    *("gelu_gated", "attention"),
    *RANGED,
)

Cut = dict[str, Any]


@pytest.fixture(scope="module")
def cuts(
    run_program: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Cut]]:
    folder = tmp_path_factory.mktemp("regions")
    program = str(ROOT / "tests/programs/region_lowering.py")
    found: dict[str, list[Cut]] = run_program(folder, program, *CASES)
    return {name: {cut["key"]: cut for cut in cut_out} for name, cut_out in found.items()}


def test_a_region_has_the_key_of_its_gemm(cuts: dict[str, dict[str, Cut]]) -> None:
    fixed = [found for name, found in cuts.items() if name not in RANGED]
    regions = [cut for found in fixed for cut in found.values() if cut["steps"]]
    assert len(regions) == 11
    assert [cut["key"] for cut in regions if cut["key"] not in cut["again"]] == []


def test_a_region_of_a_range_has_the_sizes_of_its_bucket(cuts: dict[str, dict[str, Cut]]) -> None:
    """The region of a dynamic model equals that of the static model with the bucket's rows."""
    for name in RANGED:
        ranged, fixed = cuts[name], cuts[name.partition(" ")[0]]
        assert all("m=33..64 " in key for key in ranged), name
        assert {at_upper_end(key): cut["steps"] for key, cut in ranged.items()} == {
            key: cut["steps"] for key, cut in fixed.items()
        }, name
        for key, cut in ranged.items():
            assert cut["steps"] is None or at_upper_end(key) in cut["again"], name


def test_cutting_a_region_guards_on_no_size(cuts: dict[str, dict[str, Cut]]) -> None:
    for name in RANGED:
        assert [cut["guards"] for cut in cuts[name].values()] == [[]] * len(cuts[name])


def test_an_activation_is_in_the_region(cuts: dict[str, dict[str, Cut]]) -> None:
    """The region reaches from the GEMM to the cast back to its dtype, which is the output."""
    found = cuts["gelu"][GELU]
    assert found["steps"][0] == "aten.addmm.default"
    assert "aten.tanh.default" in found["steps"]
    assert found["outputs"] == ["prims.convert_element_type.default"]


def test_the_region_of_a_gate_has_both_products(cuts: dict[str, dict[str, Cut]]) -> None:
    """Only one GEMM can fuse the multiplication, so each region contains both."""
    assert [sorted(cuts["gated"][key]["again"]) for key in (GATE, UP)] == [sorted([GATE, UP])] * 2
    # Else the other product's kernel would fuse a GELU that its region was measured without.
    gate = {key: cut for key, cut in cuts["gelu_gated"].items() if "n=512 " in key}
    assert len(gate) == 2
    assert [sorted(cut["again"]) for cut in gate.values()] == [sorted(gate)] * 2


def test_what_makes_the_operands_of_scores_is_in_their_region(
    cuts: dict[str, dict[str, Cut]],
) -> None:
    (scores,) = (
        cut for key, cut in cuts["attention"].items() if key.startswith("bmm") and "k=16 " in key
    )
    assert scores["steps"].count("aten.bmm.default") == 1
    assert "aten.mm.default" not in scores["steps"]
    assert scores["steps"].count("prims.convert_element_type.default") == 2
    assert "aten.add.Tensor" in scores["steps"]


def test_what_follows_a_reduction_is_no_part_of_the_next_region(
    cuts: dict[str, dict[str, Cut]],
) -> None:
    """The reduction's kernel divides; the strided zeros of a mask beside it are no obstacle."""
    (values,) = (
        cut for key, cut in cuts["attention"].items() if "k=64 " in key and key.startswith("bmm")
    )
    assert "aten.div.Tensor" not in values["steps"]
    assert "aten.bmm.default" in values["steps"]


def test_a_product_with_nothing_to_fuse_has_no_region(cuts: dict[str, dict[str, Cut]]) -> None:
    """There is none for a model's last GEMM, nor for a GEMM with the sum before a norm as bias."""
    alone = [*cuts["whole"].values(), *cuts["residual"].values(), cuts["gated"][DOWN]]
    assert [cut["steps"] for cut in alone] == [None] * 4


def test_a_region_in_8_bits_has_its_scales_and_casts(cuts: dict[str, dict[str, Cut]]) -> None:
    """A template reads int8 itself; a library call needs a copy in bf16 at every call."""
    (found,) = cuts["quantized"].values()
    assert found["steps"] == ["prims.convert_element_type.default", "aten.mm.default"]
    # The region has both products, and ends with the input of the next one and its scales.
    found = cuts["fp8"][FP8_GATE]
    assert found["steps"].count("aten._scaled_mm.default") == 2
    assert found["outputs"] == ["aten.div.Tensor", "prims.convert_element_type.default"]
    assert [one["fill"] for one in found["inputs"]].count("positive") == 4
    # The scales, the cast to bf16 and the activation after them are in the region.
    (found,) = cuts["int8"].values()
    assert found["steps"][:3] == ["aten._int_mm.default", "aten.mul.Tensor", "aten.mul.Tensor"]
    assert found["outputs"] == ["prims.convert_element_type.default"]


def _two_outputs(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ w) + r
    return y, y.amax(-1) @ r


def _cut(
    *inputs: torch.Tensor, function: Callable[..., Any] = _two_outputs
) -> tuple[GraphModule, Region]:
    graph = make_fx(function)(*inputs)
    gemm = next(node for node in graph.graph.nodes if node.target is torch.ops.aten.mm.default)
    for node in graph.graph.nodes:  # as inductor traces: fake, here real
        if "tensor_meta" in node.meta and "val" not in node.meta:
            metas = node.meta["tensor_meta"]
            is_one = hasattr(metas, "shape")
            node.meta["val"] = (
                torch.empty(metas.shape)
                if is_one
                else tuple(torch.empty(one.shape) for one in metas)
            )
    region = region_of(gemm, (), has_epilogue=True)
    assert region is not None
    return graph, region


def _trial_of(region: Region) -> Trial:
    """Return a trial of *region* with options and the winner of another GEMM."""
    spec, library = TensorSpec((1,), (1,), 0, "float32"), Winner(Family.EXTERN, "aten::mm")
    return Trial(
        key="k",
        op="mm",
        device="cpu",
        operands=region.inputs,
        views=(),
        out=spec,
        candidates=(),
        library=library,
        method=Method(),
        region=region,
        options={"freezing": True},
        known=(("other", library),),
    )


def _inputs(*sizes: int) -> tuple[torch.Tensor, ...]:
    source = torch.Generator().manual_seed(0)
    m, n = sizes
    shapes = ((m, 32), (32, n), (m, n))
    return tuple(torch.randn(shape, generator=source) for shape in shapes)


def test_the_module_of_a_region_computes_what_the_graph_does() -> None:
    """Every value used outside the region is an output: here the sum and its reduction."""
    inputs = _inputs(16, 16)
    _, region = _cut(*inputs)
    summed, largest = module_of(region, torch.device("cpu"))(*inputs)
    expected = torch.relu(inputs[0] @ inputs[1]) + inputs[2]
    torch.testing.assert_close((summed, largest.squeeze(0)), (expected, expected.amax(-1)))


def _normed(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the deviation of each row from its mean, over its own variance, after a residual."""
    y = x @ w + r
    variance, mean = torch.var_mean(y, -1, correction=0, keepdim=True)
    return y, (y - mean) * torch.rsqrt(variance + 1e-5)


def _normed_with_mean(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y, normed = _normed(x, w, r)
    return normed, torch.var_mean(y, -1)[1]


def test_a_norm_is_in_the_region_unless_its_mean_is_read_elsewhere() -> None:
    """Variance and mean come from one operator, and the region computes what the graph does."""
    inputs = _inputs(16, 16)
    _, region = _cut(*inputs, function=_normed)
    assert [step.target for step in region.steps].count("aten.var_mean.correction") == 1
    torch.testing.assert_close(module_of(region, torch.device("cpu"))(*inputs), _normed(*inputs))
    assert (
        trial_from_json(json.loads(json.dumps(trial_to_json(_trial_of(region))))).region == region
    )
    # The region ends before it, since a result of an operator with several is no output.
    _, region = _cut(*_inputs(16, 16), function=_normed_with_mean)
    assert [step.target for step in region.steps] == ["aten.mm.default", "aten.add.Tensor"]


def test_a_region_survives_the_way_to_another_process() -> None:
    _, region = _cut(*_inputs(8, 8))
    trial = _trial_of(region)
    assert trial_from_json(json.loads(json.dumps(trial_to_json(trial)))) == trial


def test_a_whole_region_computes_what_the_graph_does() -> None:
    """With a norm, whose reduction has two results, in front; only what others use is returned."""

    def compute(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        var, mean = torch.var_mean(x, -1, keepdim=True)
        normed = (x - mean) * (var + 1e-5).rsqrt()
        return torch.relu(normed @ w), normed.sum()

    inputs = _inputs(16, 24)[:2]
    graph = make_fx(compute, tracing_mode="fake")(*inputs)
    gemm = next(node for node in graph.graph.nodes if node.target is torch.ops.aten.mm.default)
    region = whole_region_of(gemm)
    assert region is not None
    assert region.steps[0].target == "aten.var_mean.correction"
    normed, product = module_of(region, torch.device("cpu"))(*inputs)
    var, mean = torch.var_mean(inputs[0], -1, keepdim=True)
    expected = (inputs[0] - mean) * (var + 1e-5).rsqrt()
    torch.testing.assert_close((normed, product), (expected, torch.relu(expected @ inputs[1])))


def test_only_operators_of_torch_are_made() -> None:
    """A step that names no operator of torch.ops.aten or prims is refused."""
    for target in ("aten.mm", "os.system.default", "aten.__class__.x", "a b.c.d"):
        _, region = _cut(*_inputs(8, 8))
        step = region.steps[0]
        bad = Region(region.inputs, (type(step)(target, (), {}),), (0,), (1,))
        with pytest.raises(ValueError, match="not an operator of torch"):
            module_of(bad, torch.device("cpu"))
