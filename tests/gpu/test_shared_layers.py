"""Shared layers on a GPU: one CUDA graph of the whole model, and weights that move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import warmup

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # torch's own: it begins a pool of graphs by recording none, and its profiler ends a cycle
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty", "ignore:Warning. Profiler clears"),
]
WIDTH, ROWS, LAYERS = 256, 16, 4


class Layer(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows, changed."""
        changed: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return changed


class Layers(nn.Module):
    """Equal layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the last layer makes of *x*."""
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def model() -> Iterator[nn.Module]:
    """A model in bf16, and no gradients."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    with torch.no_grad():
        yield Layers().eval().to("cuda", torch.bfloat16)


def served(
    model: nn.Module, layers: str = "once", mode: str | None = "reduce-overhead"
) -> warmup.CompiledModel:
    """Return the model served from one bucket, recorded as a CUDA graph where the *mode* does."""
    return warmup.compile(
        model,
        dims={"x": {0: "n"}},
        buckets={"n": (ROWS,)},
        policy="exact",
        mode=mode,
        layers=layers,
    )


def distance(served: warmup.CompiledModel, model: nn.Module) -> float:
    """Return how far an output is from the uncompiled model's."""
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    expected = model(x)
    return float((served(x) - expected).float().norm() / expected.float().norm())


def test_a_call_launches_one_cuda_graph(model: nn.Module) -> None:
    """After the graph is recorded, a call launches one graph and is as close as bf16 is."""
    compiled = served(model)
    assert max(distance(compiled, model) for _ in range(4)) <= 2e-2
    assert counters["inductor"]["cudagraph_skips"] == 0
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        compiled(x)
        torch.cuda.synchronize()
    launches = [event for event in profile.events() if event.name == "cudaGraphLaunch"]
    assert len(launches) == 1


def test_a_weight_that_moves_is_recorded_again(model: nn.Module) -> None:
    """A replaced weight and one with new memory are noticed, and the next output is right."""
    compiled = served(model)
    for _ in range(4):
        distance(compiled, model)
    layer = model.layers[1]
    layer.up.weight = nn.Parameter(torch.randn_like(layer.up.weight))
    assert max(distance(compiled, model) for _ in range(4)) <= 2e-2
    layer.down.weight.data = torch.randn_like(layer.down.weight)
    assert max(distance(compiled, model) for _ in range(4)) <= 2e-2
    report = compiled.report().layers
    assert report is not None
    assert (report.shared, report.artifacts, report.changes) == (LAYERS, 1, 2)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_auto_measures_both_ways_and_takes_one(model: nn.Module, mode: str | None) -> None:
    """The bucket has a ratio; it is shared, or a whole graph where sharing is slower."""
    compiled = served(model, "auto", mode)
    assert max(distance(compiled, model) for _ in range(4)) <= 2e-2
    report = compiled.report().layers
    assert report is not None
    assert report.refusal is None
    assert [*report.costs] == ["n=16"]
    assert 0.2 < report.costs["n=16"] < 20
    assert set(report.slower) <= {"n=16"}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_warming_measures_too(model: nn.Module, mode: str | None) -> None:
    """Kernels are compiled beside tracing, and the measurement still has its turn."""
    compiled = served(model, "auto", mode)
    compiled.warm(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16))
    assert distance(compiled, model) <= 2e-2
    report = compiled.report().layers
    assert report is not None
    assert [*report.costs] == ["n=16"]


def test_a_weight_with_other_strides_at_the_same_address_is_noticed(model: nn.Module) -> None:
    """A CUDA graph would replay with the strides that it was recorded with."""
    for layer in model.layers:  # square, so that the sizes stay as they are
        layer.up = nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        layer.down = nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled = served(model)
    for _ in range(4):
        distance(compiled, model)
    weight = model.layers[1].up.weight
    weight.data = weight.data.t()
    assert max(distance(compiled, model) for _ in range(4)) <= 2e-2
    report = compiled.report().layers
    assert report is not None
    assert report.changes == 1
