"""Serves models of repeated layers with ``layers="auto"``, some of which try to be shared wrongly.

Prints JSON: by name of the case the largest error over the uncompiled model, the graphs that were
compiled, and what was said. Every case has empty memory, and the same caches on disk.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import cpp_sources
import torch
from torch import nn
from torch._dynamo.utils import counters

import warmup
from warmup.core.events import Emitter, Event
from warmup.inductor import connect
from warmup.inductor.layers.compiler import LayerCompiler
from warmup.keys.weight import Padding, padded_sizes
from warmup.models.layer_pair import LayerPair
from warmup.models.padding.apply import pad
from warmup.models.padding.groups import find_groups
from warmup.table.lookup import Lookup, OnMiss

WIDTH = 8
SIZE = 4


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


class Odd(Layer):
    """Its weights have an odd size, for which they are padded."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.up, self.down = nn.Linear(WIDTH, 45), nn.Linear(45, WIDTH)


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


class Config:
    """What layers share, as those of transformers do: with a way of its own to read attributes."""

    scale = 1.0

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("__dict__").get("other_names", {})
        return super().__getattribute__(names.get(name, name))


class Configured(Layer):
    def __init__(self, index: int, config: Config) -> None:
        super().__init__(index)
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) * self.config.scale
        return y * self.bonus if hasattr(self, "bonus") else y


SCALE = 0.5  # a global that a layer reads, and beside it one that is read in a list
LIMITS = [0.5, 2.0]


class Slotted:
    """An object without a dict."""

    __slots__ = ("shift",)

    def __init__(self) -> None:
        self.shift = 0.25


def _closure() -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], None]]:
    """Return a function with a number in its closure, and another that changes the number."""
    number = 1.5

    def multiply(x: torch.Tensor) -> torch.Tensor:
        return x * number

    def change() -> None:
        nonlocal number
        number = 3.0

    return multiply, change


class ReadsMuch(Layer):
    """Reads values from objects that have no version."""

    factor = 1.0

    def __init__(self, index: int, slotted: Slotted, multiply: Any) -> None:
        super().__init__(index)
        self.sizes = [1.0, [2.0, 3.0]]
        self.names = {"shifted"}
        self.slotted, self.multiply = slotted, multiply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) * SCALE * self.factor * self.sizes[0] * self.sizes[1][1]  # type: ignore[index, operator]
        y = self.multiply(y).clamp(max=LIMITS[1]) + self.slotted.shift
        return y + 1 if "shifted" in self.names else y


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


class OddFloats(Layer):
    """Called with an infinite float and with a NaN; returns both."""

    def forward(self, x: torch.Tensor, limit: float, *, fill: float) -> tuple[Any, ...]:  # type: ignore[override]
        y = super().forward(x).clamp(max=limit)
        return y, limit, torch.where(y.isnan(), fill, y), fill


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


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
        places = (x, x * 3) if layer is self.layers[0] else (x * 2, x.cos())
        y, more = layer(x, mask=x > 1, places=places, cache=None, scale=0.5)
        out: torch.Tensor = y + more["second"] + more["mean"][0]
        return out


class FloatsModel(Model):
    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, limit, z, fill = layer(x, math.inf, fill=math.nan)
        out: torch.Tensor = y + z if limit == math.inf and fill != fill else x  # noqa: PLR0124
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


def strided(model: Model) -> None:
    layer: Any = model.layers[1]
    layer.up.weight.data = nn.functional.pad(layer.up.weight.data, (1, 0))[:, 1:]


def tagged(model: Model) -> None:
    layer: Any = model.layers[0]
    layer.up.weight = nn.Parameter(torch.rand(2 * WIDTH, WIDTH).as_subclass(Tagged))


def unlike(model: Model) -> None:
    """Give every tensor but those of the first layer other values than its neighbours have."""
    for layer in model.layers[1:]:
        for tensor in (*layer.parameters(), *layer.buffers()):
            tensor.data.uniform_(-0.5, 0.5)


def padded(model: Model) -> None:
    groups = find_groups(model).groups
    pad(model, {each: Padding(padded_sizes(each.structure.features, "f32")[0]) for each in groups})


def nested(*blocks: int) -> Model:
    """Return a model of Sequentials with so many equal blocks."""
    stages = [nn.Sequential(*(Layer(index) for index in range(count))) for count in blocks]
    return Model([*stages]).eval()


# What alters a model so that layers differ, by name of the case; each is compared with a copy.
SHARED: dict[str, tuple[type[Layer], Callable[[Model], None] | None]] = {
    "equal": (Layer, None),
    "alternates": (Alternates, None),
    "other_eps": (Layer, other_eps),
    "other_shape": (Layer, other_shape),
    "tied_across": (Layer, tied_across),
    "tied_inside": (Layer, tied_inside),
    "parametrized": (Layer, parametrized),
    "strided": (Layer, strided),
    "padded": (Odd, padded),
}
# What is shared where weights are constants of the compiled graph.
FROZEN: dict[str, Callable[[Model], None]] = {
    "frozen": unlike,
    "frozen_tied_inside": tied_inside,
    "frozen_other_eps": other_eps,
}
# What cannot be shared: what ``layers="once"`` says.
REFUSED: dict[str, tuple[type[Layer], Callable[[Model], None] | None]] = {
    "reads_index": (ReadsIndex, None),
    "hooked_inside": (Layer, hooked_inside),
    "counts": (Counts, None),
    "appends": (Appends, None),
    "drops": (Drops, None),
    "writes_input": (WritesInput, None),
    "writes_buffer": (WritesBuffer, None),
    "returns_view": (ReturnsView, None),
    "tagged": (Layer, tagged),
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
        buckets={"n": (SIZE,)},
        policy=policy,
        independent=("n",),
        layers=layers,
    )


def case(model: Model, said: _Said, policy: str = "exact", sizes: tuple[int, ...] = (SIZE,)) -> Any:
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
        "lowered": counters["inductor"]["fxgraph_cache_miss"],
        "loaded": counters["aot_autograd"]["autograd_cache_hit"],
        "calls": [getattr(each, "calls", 0) for each in (model, *model.layers)],
    }


def _toggling(model: Model) -> Callable[[], object]:
    def toggled() -> None:
        model.train()
        model.eval()

    return toggled


def _adding(model: Model) -> Callable[[], object]:
    def added() -> None:
        for layer in model.layers:
            layer.bonus = 0.25  # type: ignore[assignment]  # what `Configured` looks for

    return added


def _changes(model: Model) -> list[Callable[[], object]]:
    """Return what changes *model* in every way that must be noticed, or needs no notice."""
    layers: Any = model.layers

    def replaced() -> None:
        layers[1].up.weight = nn.Parameter(torch.rand(2 * WIDTH, WIDTH))

    def loaded() -> None:
        model.load_state_dict({name: each * 0.9 for name, each in model.state_dict().items()})

    def pointed() -> None:
        layers[2].up.weight.data = torch.rand(2 * WIDTH, WIDTH)

    def hooked() -> None:
        layers[1].register_forward_hook(lambda _module, _args, out: out * 2)

    def swapped() -> None:
        layers[3].down = nn.Linear(2 * WIDTH, WIDTH)

    def configured() -> None:
        layers[0].config.scale = 3.0

    def trained() -> None:
        layers[3].train()

    def doubled() -> None:
        model.double()

    def hooked_inside() -> None:
        layers[1].up.register_forward_hook(lambda _module, _args, out: out * 2)

    return [
        *(
            _toggling(model),
            replaced,
            loaded,
            pointed,
            hooked,
            swapped,
            configured,
            _adding(model),
            trained,
            doubled,
            hooked_inside,
        )
    ]


def _changes_of_objects(model: Model, closed: Callable[[], None]) -> list[Callable[[], object]]:
    """Return what changes values of objects that have no version."""
    layers: Any = model.layers

    def item() -> None:
        for layer in layers:
            layer.sizes[0] = 1.25

    def inner_item() -> None:
        for layer in layers:
            layer.sizes[1][1] = 1.0

    def member() -> None:
        for layer in layers:
            layer.names.clear()

    def slot() -> None:
        layers[0].slotted.shift = 0.75

    def reshaped() -> None:
        layers[2].up, layers[2].down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def turned() -> None:
        layers[2].up.weight.data = torch.rand(*layers[2].up.weight.shape[::-1]).t()

    return [item, inner_item, member, slot, closed, turned, reshaped]


def _changes_of_globals() -> list[Callable[[], object]]:
    """Return what changes attributes of classes and globals."""

    def attribute_of_class() -> None:
        ReadsMuch.factor = 2.0

    def module_global() -> None:
        global SCALE  # noqa: PLW0603  what a user's module does
        SCALE = 0.25

    def item_of_global() -> None:
        LIMITS[1] = 1.0

    def other_global() -> None:
        globals()["not read"] = 3

    return [attribute_of_class, module_global, item_of_global, other_global]


def changes(names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what came of each change of two served models; only of *names*, of one model."""
    config = Config()
    model = Model([Configured(index, config) for index in range(4)]).eval()
    found = _after_each(
        model, [each for each in _changes(model) if not names or each.__name__ in names]
    )
    if names:
        return found
    multiply, change = _closure()
    slotted = Slotted()
    model = Model([ReadsMuch(index, slotted, multiply) for index in range(4)]).eval()
    return found | _after_each(model, [*_changes_of_objects(model, change), *_changes_of_globals()])


def _after_each(model: Model, changes: list[Callable[[], object]]) -> dict[str, Any]:
    """Return what came of each of *changes* of *model*, by its name."""
    served = serve(model)
    x = torch.randn(SIZE, WIDTH)
    served(x)
    found: dict[str, Any] = {}
    for change in changes:
        change()
        x = x.to(model.first.weight.dtype)
        before = served.report().layers
        assert before is not None
        error = float((served(x) - model(x)).abs().max())
        after = served.report().layers
        assert after is not None
        found[change.__name__] = {
            "error": error,
            "changes": after.changes - before.changes,
            "refusal": after.refusal,
        }
    return found


def otherwise() -> dict[str, Any]:
    """Serve calls of another form than the proved one, and after everything was forgotten."""
    model = Model([Layer(index) for index in range(3)]).eval()
    served = serve(model)
    x = torch.randn(SIZE, WIDTH)
    served(x)
    with torch.enable_grad():
        graded = served(x)
        error = float((graded - model(x)).detach().abs().max())
    before = served.report().layers
    torch._dynamo.reset()
    error = max(error, float((served(x) - model(x)).abs().max()))
    after = served.report().layers
    return {"error": error, "grad": graded.requires_grad, "before": before, "after": after}


def modes() -> dict[str, Any]:
    """Serve calls in several modes of torch, then all of them again."""
    model = _model(Layer)
    served = serve(model)
    x = torch.randn(SIZE, WIDTH)
    outputs, errors, graphs = [], [], []
    for _ in range(2):
        for mode in (
            torch.autocast("cpu", torch.bfloat16),
            torch.inference_mode(),
            torch.no_grad(),
        ):
            with mode:
                expected, actual = model(x), served(x)
            outputs.append(str(actual.dtype))
            errors.append(float((actual - expected).norm() / expected.norm()))
        graphs.append(counters["stats"]["unique_graphs"])
    return {
        "dtypes": outputs,
        "error": max(errors),
        "later": graphs[1] - graphs[0],
        "layers": served.report().layers,
    }


def frozen(said: _Said) -> dict[str, Any]:
    """Return what came of models whose weights are constants of the compiled graphs."""
    found = {name: case(_model(Layer, alter), said) for name, alter in FROZEN.items()}
    found["frozen_range"] = case(_model(Layer, unlike), said, "range", (3, 4, 2))
    model = _model(Layer, unlike)
    with torch.inference_mode():
        found["frozen_inference"] = case(model, said)
    found["frozen_changes"] = changes(("toggled", "replaced", "loaded", "pointed"))
    return found


def from_template() -> dict[str, Any]:
    """Serve products of the C++ template from the rows of a table, without a miss."""
    torch._dynamo.reset()
    rows = cpp_sources.template_rows([SIZE], torch.float32)
    events: list[Event] = []
    lookup = Lookup(rows, OnMiss.STRICT, Emitter([events.append]))
    model = nn.Sequential(*(cpp_sources.Layer() for _ in range(4))).eval()
    served = warmup.compile(
        model, dims={"input": {0: "n"}}, buckets={"n": (SIZE,)}, policy="exact", layers="once"
    )
    attachment = connect().attach(lookup, cpp_sources.OPTIONS, "test")
    counters.clear()
    try:
        x = torch.randn(SIZE, cpp_sources.WIDTH)
        error = max(float((served(x) - model(x)).abs().max()) for _ in range(2))
    finally:
        attachment.detach()
    return {
        "error": error,
        "hits": sum(event.name == "lookup.hit" for event in events),
        "templates": counters["inductor"]["cpp_templated_kernel_counter"],
        "layers": served.report().layers,
    }


def again() -> dict[str, Any]:
    """Return what came of models whose graphs are cached, with other weights; nothing else runs."""
    said = _Said()
    with torch.no_grad():
        return {
            "equal": case(_model(Layer), said),
            "other_eps": case(_model(Layer, other_eps), said),
            "forms": case(FormsModel([ManyForms(each) for each in range(4)]).eval(), said),
            "range": case(_model(Layer), said, "range", (3, 4, 2)),
        }


def warmed() -> dict[str, Any]:
    """Return what came of `CompiledModel.warm`, which compiles kernels beside tracing."""
    model = _model(Layer)
    served = serve(model)
    x = torch.randn(SIZE, WIDTH)
    served.warm(x)
    before = counters["stats"]["unique_graphs"]
    error = float((served(x) - model(x)).abs().max())
    later = counters["stats"]["unique_graphs"] - before
    return {"error": error, "later": later, "layers": served.report().layers}


def measured(said: _Said, ratio: float, model: Model) -> Any:
    """Serve *model* where sharing takes *ratio* of one graph's time in each round, on any device.

    Both ways are compiled and called; only the times are stated.
    """
    with (
        mock.patch("warmup.serving.compiled.shared_layers.is_timed", return_value=True),
        mock.patch("warmup.models.sharing_cost.ratio_of", return_value=ratio),
    ):
        return case(model, said)


def unmeasured(said: _Said) -> Any:
    """Serve a model where the two layers cannot be compiled as one graph."""
    compile_layer = LayerCompiler.compile

    def compile_alone(compiler: LayerCompiler, layer: nn.Module, *call: Any) -> Any:
        if isinstance(layer, LayerPair):
            raise RuntimeError("no more memory")  # noqa: TRY004  of a device
        return compile_layer(compiler, layer, *call)

    with (
        mock.patch("warmup.serving.compiled.shared_layers.is_timed", return_value=True),
        mock.patch.object(LayerCompiler, "compile", compile_alone),
    ):
        return case(_model(Layer), said)


def refusal(model: nn.Module, name: str = "x") -> str:
    """Return what ``layers="once"`` says of *model*."""
    try:
        served = warmup.compile(
            model.eval(),
            dims={name: {0: "n"}},
            buckets={"n": (SIZE,)},
            policy="exact",
            layers="once",
        )
        served(torch.randn(SIZE, WIDTH))
    except warmup.WarmupError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def unrepeated(said: _Said) -> list[str]:
    """Return what is said where a model without repeated layers is served at two sizes."""
    said.lines.clear()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH)).eval()
    served = warmup.compile(
        model, dims={"input": {0: "n"}}, buckets={"n": (2, SIZE)}, policy="exact", layers="auto"
    )
    for size in (2, SIZE, 2):
        served(torch.randn(size, WIDTH))
    return said.lines


def _model(kind: type[Layer], alter: Callable[[Model], None] | None = None) -> Model:
    model = Model([kind(index) for index in range(4)]).eval()
    if alter is not None:
        alter(model)
    return model


def main() -> None:
    """Serve every case; with a seed as argument those of `again`."""
    if sys.argv[1:]:
        torch.manual_seed(int(sys.argv[1]))
        sys.stdout.write(json.dumps(again(), default=dataclasses.asdict) + "\n")
        return
    said = _Said()
    logging.getLogger("warmup").addHandler(said)
    logging.getLogger("warmup").setLevel(logging.INFO)
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    with torch.no_grad():
        for name, (kind, alter) in SHARED.items():
            found[name] = case(_model(kind, alter), said)
        found["forms"] = case(FormsModel([ManyForms(each) for each in range(4)]).eval(), said)
        found["floats"] = case(FloatsModel([OddFloats(each) for each in range(3)]).eval(), said)
        found["counting_model"] = case(
            CountingModel([Layer(index) for index in range(3)]).eval(), said
        )
        found["range"] = case(_model(Layer), said, "range", (3, 4, 2))
        found["pad"] = case(_model(Layer), said, "pad", (3, 4, 2))
        found["refused"] = {
            name: refusal(_model(kind, alter)) for name, (kind, alter) in REFUSED.items()
        }
        found["refused"]["none"] = refusal(nn.Sequential(nn.Linear(WIDTH, WIDTH)), "input")
        counted = _model(Counts)
        refusal(counted)
        found["counted"] = [layer.calls for layer in counted.layers]
        found["changes"] = changes()
        found["otherwise"] = otherwise()
        found["warmed"] = warmed()
        found["nested"] = case(nested(2, 2, 2), said)
        found["uneven"] = case(nested(2, 3), said)
        found["modes"] = modes()
        found["not slower"] = measured(said, 1.0, _model(Layer))
        found["slower"] = measured(said, 1.02, _model(Layer))
        found["apart"] = measured(
            said, 1.0, FormsModel([ManyForms(each) for each in range(4)]).eval()
        )
        found["unmeasured"] = unmeasured(said)
        found["unrepeated"] = list(unrepeated(said))
        with torch._inductor.config.patch(freezing=True):
            found |= frozen(said)
        found["template"] = from_template()
    with torch.inference_mode():
        found["refused"]["inference"] = refusal(_model(WritesInput))
        with torch._inductor.config.patch(freezing=True):
            found["refused"]["frozen_inference"] = refusal(_model(Layer))
        found["inference"] = case(_model(Layer), said)
    found["refused"]["gradients"] = refusal(_model(Layer))
    sys.stdout.write(json.dumps(found, default=dataclasses.asdict) + "\n")


if __name__ == "__main__":
    main()
