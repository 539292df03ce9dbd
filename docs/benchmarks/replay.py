"""What the host takes to replay the CUDA graph of a layer that is recorded in several ways.

    python replay.py OUT.json [--model examples/vision_block.py:SwiGLU] [--seqlens 16,256,560]

`launched` is torch.compile in its default mode, without a graph. `trees` is the mode
reduce-overhead, which `warmup.compile` serves with. `plain` has inductor's graphs without its trees
of graphs. `own` is the compiled layer recorded by torch.cuda.graph, whose input is copied to one
address: the least that a replay can take. The ``calls`` of OUT have for each way and size what a
call costs the host and the device, in us, and the largest difference from eager mode over the
largest output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from driver import now, say, write
from torch import nn

from warmup.buckets.bucket import parse_buckets
from warmup.measuring.enqueue import cost_of
from warmup.models.loading import load_model, make_inputs

WAYS: dict[str, dict[str, Any]] = {
    "launched": {},
    "trees": {"mode": "reduce-overhead"},
    "plain": {"options": {"triton.cudagraphs": True, "triton.cudagraph_trees": False}},
    "own": {},
}
FIRST_CALLS = 4  # of a size, until its graph is recorded and was replayed

Layer = Callable[[torch.Tensor], torch.Tensor]


class Recorded:
    """The graph of a call of *layer*, which has run before, for inputs of the size of *given*."""

    def __init__(self, layer: Layer, given: torch.Tensor) -> None:
        self._input, self._graph = given.clone(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = layer(self._input)

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        """Return the output for *given*, until the next call."""
        self._input.copy_(given)
        self._graph.replay()
        return self._output


def cost(way: str, model: nn.Module, given: torch.Tensor) -> dict[str, float]:
    """Return what a call of *model* costs when it is compiled and recorded in *way*."""
    layer: Layer = torch.compile(model, dynamic=False, **WAYS[way])
    for _ in range(FIRST_CALLS):
        layer(given)
    call = Recorded(layer, given) if way == "own" else layer
    expected = model(given)
    error = (call(given) - expected).abs().max() / expected.abs().max()
    measured = cost_of(partial(call, given), given.device)
    return {
        "host_us": measured.host_us,
        "device_us": measured.device_us,
        "error": float(f"{error.item():.2g}"),
    }


def main() -> None:
    """Measure all ways at all sizes, and write what they cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="examples/vision_block.py:SwiGLU")
    parser.add_argument("--seqlens", default="16,256,560")
    asked = parser.parse_args()
    loaded, on = load_model(asked.model), torch.device("cuda")
    model = loaded.module.to(on)
    calls: list[dict[str, Any]] = []
    with torch.no_grad():
        for way in WAYS:
            torch.compiler.reset()
            for bucket in parse_buckets(asked.seqlens, None):
                (given,) = make_inputs(loaded, (), bucket, on, None).args
                found = {"way": way, "bucket": str(bucket), **cost(way, model, given)}
                calls.append(found)
                say(found)
    device = torch.cuda.get_device_name()
    origin = {"device": device, "torch": torch.__version__, "model": asked.model, "created": now()}
    write(asked.out, {**origin, "calls": calls})


if __name__ == "__main__":
    main()
