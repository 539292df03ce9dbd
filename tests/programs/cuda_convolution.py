"""Lower convolutions for the stated H100, by the library or a template, as rows say.

    echo '{"case": "patches", "tile": {"BLOCK_M": 128}}' | python cuda_convolution.py

One case a line on stdin, one result a line on stdout. ``tile`` is a part of the kwargs of the
template that the row names; ``library`` names the library's kernel instead; without both there is
no row. ``on_miss`` is ``tune`` for a build, in which the template with ``tile`` is the fastest.
``ranged`` makes the batch a range, and ``backends`` are those of the policy. The result has the
lines of the generated code that launch kernels, the events, and what was timed.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import fake_gpu
import torch
from torch.nn import functional

fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after the device is pretended
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.select_algorithm import (  # noqa: E402
    AlgorithmSelectorCache,
    TritonTemplateCaller,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import warmup_error_in  # noqa: E402
from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.rows import Evidence, Family, Row, Winner  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.convolution import calls  # noqa: E402
from warmup.inductor.convolution.choices import key_of, winner_of  # noqa: E402
from warmup.inductor.patches import Patches  # noqa: E402
from warmup.table.lookup import Lookup, OnMiss  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=None, runner_up=None, runner_up_us=None, tried=1)
LIBRARY = Winner(Family.EXTERN, "aten::convolution")
LAUNCH = re.compile(r"\b(?:triton_\w+\.run|extern_kernels\.\w+)\(.*")
# Input, weight, stride and padding; as in a ViT, and in a network of images.
CASES = {
    "patches": ((8, 3, 518, 518), (768, 3, 14, 14), 14, 0),
    "narrow": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
}
TritonTemplateCaller.precompile = lambda _: None  # type: ignore[method-assign]  nothing runs


def on_the_cpu(operand: Any) -> torch.Tensor:
    return torch.zeros([int(size) for size in operand.get_size()], dtype=operand.get_dtype())


calls._random = on_the_cpu


def generate(case: dict[str, Any]) -> str:
    """Return the code that inductor generates for *case*."""
    x, w, stride, padding = CASES[case["case"]]
    shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    batch = fake_gpu.make_range(shapes, 2, x[0], hint=x[0]) if case.get("ranged") else x[0]

    def convolve(given: Any, weight: Any, bias: Any) -> Any:
        return functional.relu(functional.conv2d(given, weight, bias, stride, padding))

    with mode:
        like: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda:0"}
        inputs = [torch.empty(size, **like) for size in ((batch, *x[1:]), w, w[:1])]
        graph = make_fx(convolve, decomposition_table=select_decomp_table())(*inputs)
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    with config.patch(settings):
        return fake_gpu.generate(graph, inputs, mode, shapes)


def listed(case: dict[str, Any]) -> list[tuple[str, list[Winner]]]:
    """Return the key of each convolution in *case*, and the winners that inductor lists for it."""
    found: list[tuple[str, list[Winner]]] = []

    def wrap(original: Any) -> Any:
        def select(
            cache: Any,
            name: str,
            choices: list[Any],
            nodes: Any,
            layout: Any,
            *args: Any,
            **kw: Any,
        ) -> Any:
            if name == "convolution":
                winners = [winner for one in choices if (winner := winner_of(one)) is not None]
                found.append((key_of(choices, nodes, layout), winners))
            return original(cache, name, choices[:1], nodes, layout, *args, **kw)

        return select

    patches = Patches()
    patches.wrap(AlgorithmSelectorCache, "__call__", wrap)
    try:
        generate(case)
    finally:
        patches.restore()
    return found


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Generate the code of *case* under a table, and return what came of it."""
    events: list[Event] = []
    tile, rows, candidates = dict(case.get("tile", {})), {}, list[str]()
    if not case.get("ranged"):
        ((key, winners),) = listed(case)
        candidates = [str(winner) for winner in winners]
        wanted = next(
            (one for one in winners if tile and tile.items() <= dict(one.kwargs).items()), LIBRARY
        )
        if case.get("library") or (tile and "on_miss" not in case):
            rows = {key: Row(wanted, EVIDENCE)}
    tuner = fake_gpu.StatedTuner(
        lambda winner: 1.0 if tile and tile.items() <= dict(winner.kwargs).items() else 2.0
    )
    lookup = Lookup(
        rows, OnMiss(case.get("on_miss", "fallback")), Emitter([events.append]), tuner=tuner
    )
    backends = case.get("backends", "ATEN,TRITON")
    code, error = "", None
    attachment = connect().attach(lookup, {}, "test", quiet=True)
    try:
        with config.patch({"max_autotune_conv_backends": backends}):
            code = generate(case)
    except Exception as raised:  # noqa: BLE001  whatever it is, a test says what it should be
        own = warmup_error_in(raised)
        error = f"{type(own or raised).__name__}: {own or raised}"
    finally:
        attachment.detach()
    return {
        "error": error,
        "launches": LAUNCH.findall(code),
        "events": [{"name": event.name, **event.fields} for event in events],
        "candidates": candidates,
        "timed": tuner.timed,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
