"""Serves models of repeated layers with ``layers="auto"``, some of which try to be shared wrongly.

Prints JSON: by name of the case the largest error over the uncompiled model, the graphs that were
compiled, and what was said.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

import warmup

WIDTH = 8
SIZES = (4,)


class Layer(nn.Module):
    """A residual layer; the cases below change a part of it."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("shift", torch.rand(WIDTH))

    def change(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return changed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.change(x) * self.shift


class ReadsIndex(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.change(x) * (self.layer_idx + 1)


class Alternates(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.is_odd = index % 2 == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed = self.change(x)
        return x + (torch.tanh(changed) if self.is_odd else torch.sin(changed))


class Counts(Layer):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Appends(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return super().forward(x)


class Drops(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.dropout(x, 0.5, train=True))


class WritesInput(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(self.change(x))


class WritesBuffer(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shift.mul_(0.5)
        return super().forward(x)


class ReturnsView(Layer):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), x[:1]


class ManyForms(Layer):
    """Called with keywords, a mask and a tuple; returns nested containers and an argument."""

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        *,
        mask: torch.Tensor,
        places: tuple[torch.Tensor, torch.Tensor],
        cache: None = None,
        scale: float = 1.0,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        first, second = places
        y = (x + self.change(x) * first * scale).masked_fill(mask, 0.0)
        return y, {"second": second, "none": cache, "mean": [y.mean(), 3]}


class Model(nn.Module):
    """Layers one after the other, between two Linears."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.step(layer, x)
        out: torch.Tensor = self.last(x)
        return out

    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        returned = layer(x)
        result: torch.Tensor = returned[0] if isinstance(returned, tuple) else returned
        return result


class FormsModel(Model):
    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        places = (x, x) if layer is self.layers[0] else (x * 2, x.cos())
        y, more = layer(x, mask=x > 1, places=places, cache=None, scale=0.5)
        out: torch.Tensor = y + more["second"] + more["mean"][0]
        return out


class CountingModel(Model):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def other_eps(model: Model) -> None:
    model.layers[2].norm.eps = 0.1  # type: ignore[union-attr, assignment]


def other_shape(model: Model) -> None:
    model.layers[1].shift = torch.rand(1)


def tied_across(model: Model) -> None:
    model.layers[1].up = model.layers[0].up


def tied_inside(model: Model) -> None:
    layer: Any = model.layers[1]
    layer.norm.bias = layer.norm.weight


def hooked_inside(model: Model) -> None:
    layer: Any = model.layers[1]
    layer.up.register_forward_hook(lambda _module, _args, out: out * 2)


def parametrized(model: Model) -> None:
    layer: Any = model.layers[1]
    nn.utils.parametrizations.weight_norm(layer.up)


def grown(model: Model) -> None:
    layer: Any = model.layers[1]
    layer.up.weight.data = nn.functional.pad(layer.up.weight.data, (1, 0))[:, 1:]


CASES: dict[str, tuple[type[Layer], Callable[[Model], None] | None]] = {
    "equal": (Layer, None),
    "reads_index": (ReadsIndex, None),
    "alternates": (Alternates, None),
    "other_eps": (Layer, other_eps),
    "other_shape": (Layer, other_shape),
    "tied_across": (Layer, tied_across),
    "tied_inside": (Layer, tied_inside),
    "hooked_inside": (Layer, hooked_inside),
    "parametrized": (Layer, parametrized),
    "strided": (Layer, grown),
    "counts": (Counts, None),
    "appends": (Appends, None),
    "drops": (Drops, None),
    "writes_input": (WritesInput, None),
    "writes_buffer": (WritesBuffer, None),
    "returns_view": (ReturnsView, None),
}


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def serve(model: nn.Module, policy: str = "exact", layers: str = "auto") -> warmup.CompiledModel:
    return warmup.compile(
        model,
        dims={"x": {0: "n"}},
        buckets={"n": SIZES},
        policy=policy,
        independent=("n",),
        layers=layers,
    )


def case(model: Model, said: _Said, policy: str = "exact", sizes: tuple[int, ...] = SIZES) -> Any:
    """Serve *model* at *sizes*, twice each; compare with a copy that is never compiled."""
    torch._dynamo.reset()
    counters.clear()
    said.lines.clear()
    plain, served = copy.deepcopy(model), serve(model, policy)
    errors = []
    for size in (*sizes, *sizes):
        x = torch.randn(size, WIDTH)
        expected = plain(x.clone())
        errors.append(float((served(x.clone()) - expected).detach().abs().max()))
    return {
        "error": max(errors),
        "graphs": counters["stats"]["unique_graphs"],
        "layers": served.report().layers,
        "said": list(said.lines),
        "calls": [getattr(each, "calls", 0) for each in (model, *model.layers)],
        "seen": [len(getattr(layer, "seen", ())) for layer in model.layers],
    }


def changes(said: _Said) -> Iterator[tuple[str, Any]]:
    """Change a served model in every way that must be noticed, one after the other."""
    model = Model([Layer(index) for index in range(4)]).eval()
    layers: Any = model.layers
    served = serve(model, layers="auto")
    x = torch.randn(SIZES[0], WIDTH)
    hooks: list[Any] = []

    def replace() -> None:
        layers[1].up.weight = nn.Parameter(torch.rand(2 * WIDTH, WIDTH))

    def load() -> None:
        model.load_state_dict({name: each * 0.9 for name, each in model.state_dict().items()})

    def point() -> None:
        layers[2].up.weight.data = torch.rand(2 * WIDTH, WIDTH)

    def set_eps() -> None:
        layers[2].norm.eps = 0.5

    def hook() -> None:
        hooks.append(layers[1].register_forward_hook(lambda _module, _args, out: out * 2))

    def unhook() -> None:
        hooks.pop().remove()

    def swap() -> None:
        layers[3].down = nn.Linear(2 * WIDTH, WIDTH)

    def train() -> None:
        layers[3].train()

    def to_double() -> None:
        model.double()

    def hook_inside() -> None:
        hooks.append(layers[1].up.register_forward_hook(lambda _module, _args, out: out * 2))

    served(x)
    for change in (
        *(replace, load, point, set_eps, hook, unhook, swap, train, to_double, hook_inside),
    ):
        said.lines.clear()
        change()
        if change is to_double:
            x = x.double()
        before = served.report().layers.changes
        yield (
            change.__name__,
            {
                "error": float((served(x) - model(x)).abs().max()),
                "changes": served.report().layers.changes - before,
                "refusal": served.report().layers.refusal,
            },
        )


def main() -> None:
    said = _Said()
    logging.getLogger("warmup").addHandler(said)
    logging.getLogger("warmup").setLevel(logging.INFO)
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    with torch.no_grad():
        for name, (layer, alter) in CASES.items():
            model = Model([layer(index) for index in range(4)]).eval()
            if alter is not None:
                alter(model)
            found[name] = case(model, said)
        forms = FormsModel([ManyForms(index) for index in range(3)]).eval()
        found["forms"] = case(forms, said)
        found["counting_model"] = case(
            CountingModel([Layer(index) for index in range(3)]).eval(), said
        )
        found["range"] = case(
            Model([Layer(index) for index in range(3)]).eval(), said, "range", (3, 4, 2)
        )
        found["pad"] = case(
            Model([Layer(index) for index in range(3)]).eval(), said, "pad", (3, 4, 2)
        )
        found["changes"] = dict(changes(said))
    with torch.inference_mode():
        found["inference_writes"] = case(
            Model([WritesInput(index) for index in range(3)]).eval(), said
        )
        found["inference"] = case(Model([Layer(index) for index in range(3)]).eval(), said)
    found["gradients"] = case(Model([Layer(index) for index in range(3)]).eval(), said)
    found["refused"] = refused()
    sys.stdout.write(json.dumps(found, default=dataclasses.asdict) + "\n")


def refused() -> list[str]:
    """Return what ``layers="once"`` says where layers cannot be shared."""
    texts = []
    for model in (nn.Sequential(nn.Linear(WIDTH, WIDTH)), Model([ReadsIndex(0), ReadsIndex(1)])):
        try:
            with torch.no_grad():
                warmup.compile(
                    model.eval(),
                    dims={"input" if isinstance(model, nn.Sequential) else "x": {0: "n"}},
                    buckets={"n": SIZES},
                    policy="exact",
                    layers="once",
                )(torch.randn(SIZES[0], WIDTH))
        except warmup.WarmupError as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts


if __name__ == "__main__":
    main()
