"""Ask inductor's pad_mm pass about unaligned GEMMs on the stated H100; print what it did.

    python cuda_padding.py '{"label": {"op": "mm", "m": [2, 1024], "rows": "padded"}}'

Each case is one graph with one GEMM (n=1280) under one table. ``rows``: ``none`` (an empty
table), ``padded`` or ``as_is`` (a row for the key that building the same case gives). ``mode``:
strict, fallback or tune. What is measured takes ``times``, milliseconds as is and padded.
``before``, other such times, are measured first without a table, so that inductor's cache knows.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import fake_gpu
import torch

fake_gpu.pretend()

from torch._inductor.fx_passes import fuse_attention, misc_patterns, pad_mm  # noqa: E402  after the device is pretended
from torch._inductor.fx_passes.joint_graph import joint_graph_passes  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import warmup_error_in  # noqa: E402
from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.rows import Evidence, Family, Row, Winner  # noqa: E402
from warmup.core.trial import Tuned  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)
N = 1280
CASE: dict[str, Any] = {
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


def make_graph(case: dict[str, Any]) -> tuple[Any, FakeTensorMode]:
    """Return the FX graph of the case; ``produced`` makes the first operand in the graph."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    m: Any = case["m"]
    if isinstance(m, list):
        m = fake_gpu.make_range(shapes, *m, hint=case["hint"], name=case["symbol"])
    products: dict[str, Callable[[Any, Any, Any], Any]] = {
        "mm": lambda x, w, b: x @ w,
        "addmm": lambda x, w, b: torch.addmm(b, x, w),
        "bmm": lambda x, w, b: torch.bmm(x, w),
    }

    def compute(x: Any, w: Any, b: Any) -> Any:
        y = products[case["op"]](torch.relu(x) if case["produced"] else x, w, b)
        return torch.relu(y)

    with mode:
        placed: dict[str, Any] = {"dtype": getattr(torch, case["dtype"]), "device": "cuda:0"}
        batch = [4] if case["op"] == "bmm" else []
        weight = torch.empty(*batch, N, case["k"], **placed).transpose(-1, -2)
        inputs = [torch.empty(*batch, m, case["k"], **placed), weight, torch.empty(N, **placed)]
        return make_fx(compute)(*inputs), mode


@contextlib.contextmanager
def stated_times(times: list[float] | None) -> Iterator[None]:
    """Let the pass measure *times* (milliseconds) in turn; what it would run has no memory."""
    found = pad_mm.get_do_bench
    makers = {name: getattr(torch, name) for name in ("randn", "randn_like")}

    if times is not None:
        waiting = iter(times)
        pad_mm.get_do_bench = lambda: lambda _: next(waiting)
    for name, make in makers.items():
        setattr(torch, name, lambda *a, make=make, **kw: make(*a, **{**kw, "device": "meta"}))
    try:
        yield
    finally:
        pad_mm.get_do_bench = found
        for name, make in makers.items():
            setattr(torch, name, make)


def run_pass(case: dict[str, Any], times: list[float] | None = None) -> tuple[Any, list[str]]:
    """Return the case's graph after the pass, which measures *times* itself, if at all.

    With it go the guards that the pass put on sizes.
    """
    graph, fake = make_graph(case)
    assert fake.shape_env is not None
    fake.shape_env.guards.clear()
    with stated_times(times), V.set_fake_mode(fake):
        graph = joint_graph_passes(graph, torch.device("cuda"))
    return graph, [str(guard.expr) for guard in fake.shape_env.guards]


def decide(case: dict[str, Any], rows: dict[str, Winner], mode: str) -> dict[str, Any]:
    """Run the pass over the case's graph while a table of *rows* is installed."""
    events: list[Event] = []
    found: list[Tuned] = []
    timed: list[float] = []
    stated = iter(case["times"])

    def time_us(_: Winner) -> float:
        timed.append(next(stated))
        return timed[-1] * 1000

    tuner = fake_gpu.StatedTuner(time_us)
    lookup = Lookup(
        {key: Row(winner, EVIDENCE) for key, winner in rows.items()},
        emitter=Emitter([events.append]),
        **fake_gpu.answering(mode, tuner),
        on_tuned=found.append,
    )
    result: dict[str, Any] = {"error": None, "pads": None, "guards": None}
    with fresh_cache():
        if case["before"] is not None:
            run_pass(case, case["before"])
        attachment = connect().attach(lookup, {}, "test")
        try:
            graph, result["guards"] = run_pass(case)
            result["pads"] = sum(_pads(node) for node in graph.graph.nodes)
        except Exception as error:
            own = warmup_error_in(error)
            if own is None:
                raise
            result["error"] = f"{type(own).__name__}: {own}"
        finally:
            attachment.detach()
    return {
        **result,
        "timed": timed,
        "reasons": [question.reason for question in tuner.questions],
        "events": [{"name": event.name, **event.fields} for event in events],
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


def _pads(node: Any) -> bool:
    return node.op == "call_function" and node.target is torch.ops.aten.constant_pad_nd.default


def main() -> None:
    # Other patterns, whose examples put numbers on a real device.
    fuse_attention._sfdp_init = misc_patterns._misc_patterns_init = lambda *_: None
    results = {}
    for label, given in json.loads(sys.argv[1]).items():
        case = {**CASE, **given}
        rows: dict[str, Winner] = {}
        if case["rows"] != "none":
            (built,) = decide({**case, "before": None}, {}, "tune")["rows"]
            rows = {built["key"]: Winner(Family.PAD, case["rows"])}
        results[label] = decide(case, rows, case["mode"])
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
