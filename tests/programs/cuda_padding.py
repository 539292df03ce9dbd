"""Ask inductor's pad_mm pass about an unaligned GEMM on the stated H100; print what it did.

    echo '{"op": "mm", "m": [2, 1024], "rows": "padded"}' | python cuda_padding.py

A case is a graph with one GEMM (n=1280) under a table. ``rows``: ``none`` (an empty table),
``padded`` or ``as_is`` (a row for the key that building the same case gives). ``mode``: strict,
fallback or tune. What is measured takes ``times``, milliseconds as is and padded. ``before``, other
such times, are measured first without a table, so that inductor's cache knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import fake_gpu
import h100  # before inductor looks for a device
import torch
from h100 import Case
from torch._inductor.fx_passes import pad_mm
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

from warmup.core.rows import Family, Winner
from warmup.core.trial import Tuned
from warmup.keys.pad import PADDED
from warmup.keys.question import RegionQuestion

N = 1280
CASE: Case = {
    "op": "mm",
    "m": 560,
    "rows": "none",
    "mode": "strict",
    "times": [0.5, 0.25],
    "produced": False,
    "symbol": "s_m",
    "hint": 560,
    "k": 3420,
    "dtype": "bfloat16",
    "before": None,
}


def make_graph(case: Case) -> h100.Graph:
    """Return the FX graph of the case; ``produced`` makes the first operand in the graph."""
    mode = h100.fakes()
    m, k = case["m"], case["k"]
    if isinstance(m, list):
        m = fake_gpu.make_range(mode.shape_env, *m, hint=case["hint"], name=case["symbol"])
    products: dict[str, Callable[[Any, Any, Any], Any]] = {
        "mm": lambda x, w, b: x @ w,
        "addmm": lambda x, w, b: torch.addmm(b, x, w),
        "bmm": lambda x, w, b: torch.bmm(x, w),
    }

    def compute(x: Any, w: Any, b: Any) -> Any:
        y = products[case["op"]](torch.relu(x) if case["produced"] else x, w, b)
        return torch.relu(y)

    dtype, batch = getattr(torch, case["dtype"]), [4] if case["op"] == "bmm" else []
    with mode:
        sizes = [*batch, m, k], [*batch, N, k], [N]
        x, w, b = (h100.empty(*size, dtype=dtype) for size in sizes)
        inputs = [x, w.transpose(-1, -2), b]
    return h100.trace(compute, inputs, mode), inputs, mode


def run_pass(case: Case, times: list[float] | None = None) -> tuple[int, list[str]]:
    """Return how often the pass pads in the case's graph, and its guards on sizes."""
    # It measures *times* itself, if at all; what it would run has no memory.
    graph, _, mode = make_graph(case)
    assert mode.shape_env is not None
    mode.shape_env.guards.clear()
    waiting = iter(times or ())
    do_bench = pad_mm.get_do_bench if times is None else lambda: lambda _: next(waiting)
    with (
        h100.without_memory(),
        patch.object(pad_mm, "get_do_bench", do_bench),
        V.set_fake_mode(mode),
    ):
        graph = joint_graph_passes(graph, torch.device("cuda"))
    pads = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.constant_pad_nd.default)
    return len(pads), h100.guards_of(mode)


def decide(case: Case, rows: dict[str, Winner], mode: str) -> dict[str, Any]:
    """Run the pass over the case's graph while a table of *rows* is installed."""
    found: list[Tuned] = []
    timed: list[float] = []
    stated = iter(case["times"])

    def time_us(_: Winner) -> float:
        timed.append(next(stated))
        return timed[-1] * 1000

    tuner = h100.StatedTuner(time_us)
    with fresh_cache():
        if case["before"] is not None:
            run_pass(case, case["before"])
        made, result = h100.serve(lambda: run_pass(case), rows, mode, tuner, on_tuned=found.append)
    pads, guards = made or (None, None)
    return {
        **result,
        "pads": pads,
        "guards": guards,
        "timed": timed,
        "reasons": [question.reason for question in tuner.questions],
        "products": [_sizes_of(question) for question in tuner.questions],
        "rows": [
            {
                "key": tuned.key,
                "winner": str(tuned.row.winner),
                "time_us": tuned.row.evidence.time_us,
                "library_us": tuned.row.evidence.library_us,
                "timings": {str(timing.winner): timing.time_us for timing in tuned.timings},
            }
            for tuned in found
        ],
    }


def _sizes_of(question: RegionQuestion) -> list[list[int]]:
    """Return the sizes of what the product of padded operands makes, first and once more."""
    if "addmm" in question.key:  # a bias without memory is none
        return []
    made: list[Any] = [question.least[PADDED](number) for number in range(2)]
    return [list(one.shape) for one in made]


def answer(given: Case) -> dict[str, Any]:
    case = {**CASE, **given}
    rows: dict[str, Winner] = {}
    if case["rows"] != "none":
        (built,) = decide({**case, "before": None}, {}, "tune")["rows"]
        rows = {built["key"]: Winner(Family.PAD, case["rows"])}
    return decide(case, rows, case["mode"])


if __name__ == "__main__":
    h100.without_device_patterns()
    h100.answer_each(answer)
