"""Change weights after a graph has frozen them, in every way that a program does, and print a line.

    python change_weights.py [WAY...]

The line is JSON: for each way, among others, how far the outputs after the change are from eager
mode and from the outputs before it, the events, and how often inductor compiled.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

import warmup
from warmup.core.errors import WeightChangedError
from warmup.core.events import Event, EventName
from warmup.inductor import weight_watch
from warmup.keys.pad import Padding
from warmup.models.weight_groups import find_groups, pad
from warmup.table.schema import PolicyOptions, Provenance, Table
from warmup.tuning.build import find_setup


class Scale(nn.Module):
    """Asks inductor for no choice; the product of its weights is folded where they are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(8) + 1)
        self.register_buffer("shift", torch.rand(8) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.shift


class Break(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16)
        self.down = nn.Linear(16, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def double(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.mul_(2)


def load(model: nn.Module, *, assign: bool = False) -> None:
    new = {name: each * 3 for name, each in model.state_dict().items()}
    model.load_state_dict(new, assign=assign)


def point_there_and_back(model: nn.Module) -> None:
    for _ in range(5):
        for weight in model.parameters():
            weight.data = weight.data * 5


def write_in_inference_mode(model: nn.Module) -> None:
    with torch.inference_mode():
        model.gain.mul_(2)


def share(model: nn.Module) -> None:
    model.share_memory()
    double(model)


def write_to_data(model: nn.Module) -> None:
    model.gain.data.mul_(2)


def step_fused(model: nn.Module) -> None:
    with torch.enable_grad():
        model(torch.ones(8)).sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.5, fused=True).step()


def write_a_few_values(model: nn.Module) -> None:
    model.gain.data[:2] = 7


CHANGES: dict[str, Callable[[Any], Any]] = {
    **{each.__name__: each for each in (double, load, point_there_and_back, share, step_fused)},
    **{each.__name__: each for each in (write_in_inference_mode, write_to_data)},
    "write_a_few_values": write_a_few_values,
    "assign": partial(load, assign=True),
    "fill": lambda model: model.shift.fill_(7),
}


def make_table() -> Table:
    setup = find_setup("cpu", PolicyOptions())
    created = "2026-01-02T03:04:05Z"
    return Table(Provenance(setup.runtime, warmup.__version__, created), setup.policy, {})


class Watched:
    def __init__(self, on_miss: str = "fallback") -> None:
        self.install(on_miss)
        self.clear()

    def install(self, on_miss: str = "fallback") -> None:
        os.environ["WARMUP_QUIET"] = "1"
        self.handle = warmup.install(make_table(), on_miss=on_miss, freezing=True)
        self.handle._lookup.emitter.sinks.append(self._keep)

    def clear(self) -> None:
        torch.manual_seed(0)
        torch.compiler.reset()
        self.events: list[dict[str, Any]] = []
        self.contradictions: list[str] = []
        self._start = self.handle.report().compiles

    def _keep(self, event: Event) -> None:
        if event.name is EventName.CHANGED:
            self.events.append(
                {name: event.fields[name] for name in ("weight", "changed", "refused")}
            )
        elif event.name is EventName.CONTRADICTED:
            self.contradictions.append(f"{event.fields['option']}: {event.fields['found']}")

    def compiles(self) -> int:
        return self.handle.report().compiles - self._start


def gap(outputs: torch.Tensor, expected: torch.Tensor) -> float:
    return (outputs - expected).abs().max().item()


def change(watched: Watched, way: str) -> dict[str, Any]:
    model, x = Scale().eval(), torch.rand(8)
    compiled = torch.compile(model)
    before = compiled(x)
    earlier = watched.compiles()
    CHANGES[way](model)
    after = compiled(x)
    again = gap(after, compiled(x))
    return {
        "error": max(gap(after, model(x)), again),
        "moved": gap(after, before),
        "events": watched.events,
        "compiles": watched.compiles() - earlier,
    }


def swap_adapters(watched: Watched) -> dict[str, Any]:
    """Swap an adapter twenty times in place, and no graph is left of earlier adapters."""
    model, x = Adapted().eval(), torch.rand(4, 16)
    compiled = torch.compile(model)
    error = 0.0
    for _ in range(20):
        model.down.weight.copy_(torch.randn(2, 16))
        model.up.weight.copy_(torch.randn(16, 2))
        error = max(error, gap(compiled(x), model(x)))
    alive = [e for e in _debug_get_cache_entry_list(Adapted.forward.__code__) if e.code is not None]
    return {"error": error, "compiles": watched.compiles(), "graphs": len(alive)}


def break_the_graph(watched: Watched) -> dict[str, Any]:
    model, x = nn.Sequential(Scale(), Break(), Scale()).eval(), torch.rand(8)
    compiled = torch.compile(model)
    compiled(x)
    model[2].gain.mul_(2)
    return {"error": gap(compiled(x), model(x)), "compiles": watched.compiles()}


def change_padded(watched: Watched) -> dict[str, Any]:
    """The parameters of a padded Linear are views of what the graph has frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 13), nn.ReLU(), nn.Linear(13, 16)).eval()
    plain, x = copy.deepcopy(model), torch.rand(4, 16)
    (group,) = find_groups(model).groups
    pad(model, {group: Padding(16)})
    compiled = torch.compile(model)
    compiled(x)
    for each in (model, plain):
        double(each)
    error = gap(compiled(x), plain(x))
    for each in (model, plain):
        load(each)
    return {"error": max(error, gap(compiled(x), plain(x))), "compiles": watched.compiles()}


def check_in_python(watched: Watched) -> dict[str, Any]:
    with patch.object(weight_watch, "_load_check", lambda _: None):
        return change(watched, "double")


def fail_to_watch(watched: Watched) -> dict[str, Any]:
    with patch.object(weight_watch._FrozenGraph, "add_guard", side_effect=RuntimeError("planted")):
        model, x = Scale().eval(), torch.rand(8)
        error = gap(torch.compile(model)(x), model(x))
    misses = watched.handle.report().miss_reasons
    return {"error": error, "misses": dict(misses), "said": watched.contradictions}


def skip_guards(watched: Watched) -> dict[str, Any]:
    keep_none = {"guard_filter_fn": lambda guards: [False for _ in guards]}
    torch.compile(Scale().eval(), options=keep_none)(torch.rand(8))
    return {"said": watched.contradictions}


def change_in_threads(watched: Watched) -> dict[str, Any]:
    """Two threads call while a third changes weights; each output is one that eager mode has."""
    model, x = Scale().eval(), torch.rand(8)
    compiled = torch.compile(model)
    compiled(x)
    scales, wrong = [2.0**i for i in range(8)], []
    outputs = [x + model.gain * scale * model.shift for scale in scales]
    done = threading.Event()

    def call() -> None:
        with torch.no_grad():
            while not done.is_set():
                y = compiled(x)
                if not any(torch.allclose(y, each) for each in outputs):
                    wrong.append(y.tolist())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for each in threads:
        each.start()
    for _ in scales[1:]:
        time.sleep(0.5)
        model.gain.mul_(2)
    time.sleep(0.5)
    done.set()
    for each in threads:
        each.join()
    return {"wrong": wrong, "error": gap(compiled(x), model(x))}


def refuse(_watched: Watched) -> dict[str, Any]:
    _watched.handle.close()
    watched = Watched("strict")
    model, x = Scale().eval(), torch.rand(8)
    compiled = torch.compile(model)
    compiled(x)
    model.gain.mul_(2)
    said = []
    for gain in (model.gain, model.gain, nn.Parameter(model.gain * 2)):
        model.gain = gain
        try:
            compiled(x)
        except WeightChangedError as error:
            said.append(str(error))
    watched.handle.close()
    found = {"said": said, "error": gap(compiled(x), model(x)), "events": watched.events}
    _watched.install()
    return found


CASES = (
    *(swap_adapters, break_the_graph, change_padded, check_in_python, skip_guards),
    *(fail_to_watch, change_in_threads, refuse),
)


def main() -> None:
    found: dict[str, Any] = {}
    watched = Watched()
    handle = watched.handle
    cases = {way: partial(change, way=way) for way in CHANGES}
    cases |= {each.__name__: each for each in CASES}
    with torch.no_grad():
        for name in sys.argv[1:] or cases:
            watched.clear()
            found[name] = cases[name](watched)
    found["cached"] = handle.report().from_cache
    print(json.dumps(found))  # noqa: T201  the result


if __name__ == "__main__":
    main()
