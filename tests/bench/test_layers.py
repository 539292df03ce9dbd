"""`bench layers` and `bench mm`: what is checked and timed, and the reasons of what is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from warmup.bench import backends
from warmup.bench.backends import LayerAtShape, bench
from warmup.bench.cells import BenchReport, BenchRequest, Cell, Pass, reason_of
from warmup.bench.layers import LAYERS, OpenLayer, parse_shapes
from warmup.core.errors import OutputMismatchError, SettingsError

OWN = """
import torch

class GeGlu:
    title = "GeGLU"
    shapes = ((8, 16), (2, 32))

    def inputs(self, shape):
        return torch.randn(shape), torch.randn(shape)

    def eager(self, gate, up):
        return torch.nn.functional.gelu(gate) * up

    def flops(self, shape):
        return 10 * shape[0] * shape[1]

    def bytes(self, shape, item):
        return 3 * shape[0] * shape[1] * item

    def right(self, gate, up):
        return self.eager(gate, up)

    def wrong(self, gate, up):
        return self.eager(gate, up) * 1.1

    def broken(self, gate, up):
        raise ValueError("no such kernel\\nand a long story")

class Named(GeGlu):
    def compiled(self, gate, up):
        return gate

class Detached(GeGlu):
    def eager(self, gate, up):
        return super().eager(gate, up).detach()

class Zero(GeGlu):
    def flops(self, shape):
        return 0
"""


class _WrongGradient(torch.autograd.Function):
    """A softmax whose output is right, and whose gradient is not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Projection(torch.nn.Linear):
    """A subclass of one of torch's classes; ``folded`` is its only backend beside eager."""

    shapes = ((8, 16),)

    def __init__(self) -> None:
        super().__init__(16, 16)
        self.register_buffer("scale", torch.randn(16))

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.randn(shape),)

    def eager(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x) * self.get_buffer("scale")

    def folded(self, x: torch.Tensor) -> torch.Tensor:
        return self.eager(x)

    def train(self, mode: bool = True) -> _Projection:
        return super().train(mode)


def built_in(name: str) -> OpenLayer:
    return OpenLayer.of(LAYERS[name](), name)


def request(**options: Any) -> BenchRequest:
    """Return a request on the CPU: eager in float32, two rounds, unless *options* say otherwise."""
    given = {"dtype": "f32", "rounds": 2, "device": "cpu", "backends": "eager"}
    return BenchRequest(**{"benchmark": "layers", **given, **options})


def placed(name: str, *shape: int, dtype: str = "f32") -> LayerAtShape:
    return LayerAtShape(request(dtype=dtype), built_in(name), shape)


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "own_layers.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def cells_of(path: Path, name: str, **options: Any) -> list[Cell]:
    return list(bench(request(layers=[f"{path}:{name}"], **options)).cells)


def test_every_layer_agrees_with_its_reference() -> None:
    """Eager in float32 is compared with float64, and in bf16 with float32, gradients too."""
    for name in LAYERS:
        for dtype, limit in (("f32", 1e-5), ("bf16", 2e-2)):
            made = placed(name, 16, 24, dtype=dtype)
            eager = built_in(name).backends["eager"]
            assert made.no_backward == "", name
            assert 0 < made.check(eager, Pass.BOTH, limit) <= limit, name
            assert made.check(eager, Pass.FORWARD, limit) <= limit, name


def test_wrong_results_are_caught() -> None:
    """An output that is scaled, unwritten, cut, or wrong in one element, and a wrong gradient."""
    made, eager = placed("softmax", 16, 24), built_in("softmax").backends["eager"]

    def spoiled(x: torch.Tensor) -> torch.Tensor:
        out = eager(x).clone()
        out[3, 3] += 0.004
        return out

    cases: list[tuple[Any, Pass, str]] = [
        (lambda x: eager(x) * 1.1, Pass.FORWARD, "its output is wrong"),
        (lambda x: x * float("nan"), Pass.FORWARD, "its output is wrong"),
        (lambda x: eager(x)[:1], Pass.FORWARD, "its output has sizes"),
        (spoiled, Pass.FORWARD, "its output is wrong"),
        (_WrongGradient.apply, Pass.BOTH, "its gradient 1 is wrong"),
    ]
    for operator, step, said in cases:
        with pytest.raises(OutputMismatchError, match=said):
            made.check(operator, step, 1e-3)
    assert made.check(_WrongGradient.apply, Pass.FORWARD, 1e-3) <= 1e-3
    made.sets[0].run(lambda x: eager(x.zero_()), Pass.FORWARD)  # operands are restored
    assert made.check(eager, Pass.BOTH, 1e-5) < 1e-5


def test_of_a_module_only_own_methods_are_backends() -> None:
    """Methods of torch's classes are none; the reference is a copy, cast with its buffers."""
    layer = OpenLayer.of(_Projection(), "projection")
    layer.move_to("cpu", torch.bfloat16)
    assert list(layer.backends) == ["eager", "folded"]
    made = LayerAtShape(request(dtype="bf16"), layer, (8, 16))
    assert made.check(layer.backends["folded"], Pass.BOTH, 2e-2) <= 2e-2


def test_a_users_layer_has_its_methods_as_backends(own_file: Path) -> None:
    """The file's shapes, FLOPs and bytes count; a wrong or failing method costs its own cells."""
    found = cells_of(own_file, "GeGlu", backends="right,wrong,broken")
    forward = [cell for cell in found if cell.step is Pass.FORWARD]
    assert [(cell.shape, cell.backend, cell.is_wrong) for cell in forward] == [
        (shape, name, name == "wrong")
        for shape in ("8x16", "2x32")
        for name in ("eager", "right", "wrong", "broken")
    ]
    assert (forward[0].flops, forward[0].moved) == (1280, 3 * 128 * 4)
    for cell in found:
        assert (cell.samples is None) == (cell.backend in ("wrong", "broken"))
        if cell.backend == "broken":
            assert cell.reason == "ValueError: no such kernel and a long story"
    assert reason_of(SettingsError("no layer", "name one")) == "no layer; name one"


def test_a_layer_that_cannot_be_timed_has_reasons(own_file: Path) -> None:
    """FLOPs of zero cost the shape; an output without gradients costs the pass with backward."""
    zero = cells_of(own_file, "Zero", shapes="4x4")
    assert ["flops of layer Zero returned 0" in cell.reason for cell in zero] == [True, True]
    detached = cells_of(own_file, "Detached", shapes="4x4")
    assert [cell.reason.partition(":")[0] for cell in detached] == ["", "eager has no gradients"]


def test_a_library_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the error of its import, on a CPU that its kernels are for GPUs."""
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    reason = backends._missing("liger", request(device="cuda:0"))
    assert reason is not None
    assert "ModuleNotFoundError" in reason
    found = bench(request(backends="liger,table", shapes="8x16", layers=["softmax"]))
    assert found.missing["liger"] == "its kernels are for GPUs"
    assert "constant weights" in found.missing["table"]
    assert not found.is_right  # nothing but eager was compared


def test_a_shape_that_does_not_fit_costs_that_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory is the shape's reason; the report so far is kept after each shape."""
    real = backends.LayerAtShape

    def small(given: BenchRequest, layer: OpenLayer, shape: tuple[int, ...]) -> LayerAtShape:
        if shape[0] > 8:
            raise RuntimeError("out of memory")
        return real(given, layer, shape)

    monkeypatch.setattr(backends, "LayerAtShape", small)
    kept: list[BenchReport] = []
    found = bench(request(shapes="16x8,8x8", layers=["softmax"]), keep=kept.append)
    assert [len(report.cells) for report in kept] == [2, 4]
    gone = "no operands: RuntimeError: out of memory"
    assert [cell.reason for cell in found.cells] == [gone, gone, "", ""]


def test_what_cannot_be_used_is_refused_before_anything_is_timed(own_file: Path) -> None:
    assert parse_shapes("64x128, 8x9") == ((64, 128), (8, 9))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"layers": ["rmsnorm", "gelu"]}, "layer 'gelu' is unknown"),
        ({"layers": ["softmax", "softmax"]}, "layer softmax is given twice"),
        ({"layers": [f"{own_file}:Missing"]}, "layer .*has no 'Missing'"),
        ({"layers": [f"{own_file}:Named"]}, "'compiled' of a layer has the name of a backend"),
        ({"backends": "cuda"}, "--backends 'cuda' is unknown"),
        ({"dtype": "i8"}, "--dtype 'i8' is unknown"),
        *(({"shapes": wrong}, "--shapes") for wrong in ("8y8", "x64", "0x8", "8x8,8x8", "8x8,8")),
        ({"device": "tpu"}, "--device"),
        ({"benchmark": "mm", "shapes": "16x32"}, "--shapes"),
        ({"benchmark": "mm", "backends": "triton-template"}, "--backends"),
    ]
    for given, said in cases:
        with pytest.raises(SettingsError, match=said):
            bench(request(**given))
    parts = {"shapes": ((8, 16),), "inputs": torch.randn, "eager": abs}
    for missing in parts:
        some = {name: part for name, part in parts.items() if name != missing}
        with pytest.raises(SettingsError, match="layer own lacks shapes of one length, inputs"):
            OpenLayer.of(SimpleNamespace(**some), "own")
