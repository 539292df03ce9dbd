"""Run a ``@triton.autotune`` kernel under tables for the stated H100; print what was measured.

    echo '{"where": "graph"}' | python cuda_user_kernels.py

``graph``: inductor's kernel for a graph that has the user's; ``outside``: Triton's own tuner, with
a user's hooks. Times are stated, launches void.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
import serve_user_kernels as user_kernels
import torch
import triton
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx
from triton.runtime.jit import JITFunction

from warmup.core.rows import Method, Winner
from warmup.core.trial import Tuned
from warmup.table.schema import Uncovered
from warmup.tuning.tuner import Tuner

SIZE = 4096
LOG: list[Any] = []  # blocks that are launched, and the user's hooks
WORK = fake_gpu.pretend_launches(lambda named: abs(named["BLOCK"] - 1000), lambda _: False)


def bench(call: Callable[[], None], quantiles: object) -> list[float]:
    call()
    time_ms = abs(LOG[-2] - 1000) / 1000  # the hook behind the launch is the last
    return [time_ms, 0.9 * time_ms, 1.1 * time_ms]


JITFunction.run = lambda *_, **words: LOG.append(words["BLOCK"])  # type: ignore[method-assign]
OUTSIDE: Any = triton.autotune(
    configs=user_kernels.CONFIGS,
    key=["n"],
    pre_hook=lambda _, reset_only=False: LOG.append("reset" if reset_only else "before"),
    post_hook=lambda *_, **__: LOG.append("after"),
    do_bench=bench,
)(user_kernels.add_outside.fn)


def call_outside(n: int) -> None:
    OUTSIDE[(1,)](torch.zeros(n), n)


def call_graph(n: int) -> None:
    """Call inductor's kernel for a graph of *n* elements, loaded as its code does it."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel = torch.library.wrap_triton(user_kernels.scale_in_graph)
        kernel[user_kernels.grid(n)](x, y, n, 2.0)
        return y

    mode = h100.fakes()
    with mode, torch.no_grad():
        inputs = [h100.empty(n)]
        graph = make_fx(scale)(*inputs)
    ((name, source),) = h100.kernels_in(h100.generate(graph, inputs, mode))
    with torch._inductor.config.patch({"compile_threads": 1}):
        kernel = AsyncCompile().triton(name, source, device_str="cuda")
    kernel.run(torch.zeros(n), torch.zeros(n), n, 2.0, stream=0)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Build a row, then serve it, another config, one that the user has not, and other sizes."""
    call = call_graph if case["where"] == "graph" else call_outside
    tuner, tuned = Tuner(torch.device("cpu"), Method(), {}), list[Tuned]()

    def watch(winner: Winner | None, mode: str, n: int, **words: Any) -> dict[str, Any]:
        LOG.clear(), WORK.clear()
        rows = {} if winner is None else {tuned[0].key: winner}
        with fresh_cache():
            _, result = h100.serve(lambda: call(n), rows, mode, tuner, **words)
        events = [one.get("site") or one["name"] for one in result["events"]]
        launched = LOG or [int(one.split(",")[0].split("=")[1]) for one in WORK.launched]
        return {**result, "events": events, "launched": [*launched], "timed": len(WORK.timed)}

    built = watch(None, "tune", SIZE, on_tuned=tuned.append)
    if not tuned:  # a hook raised, as `planted.py` lets it
        return {"built": built}
    row = tuned[0].row.winner
    first, strange = (
        replace(row, kwargs=(("BLOCK", block), *row.kwargs[1:-1], ("num_warps", 1)))
        for block in (16, 17)
    )
    return {
        "keys": [one.key for one in tuned],
        "winner": row.short,
        "times": [one.time_us for one in tuned[0].timings],
        "built": built,
        "answered": watch(row, "strict", SIZE),
        "first": watch(first, "strict", SIZE),
        "strange": watch(strange, "fallback", SIZE),
        "missed": watch(row, "fallback", 64),
        "strict": watch(row, "strict", 128),
        "forbidden": [watch(row, "fallback", 256, on_uncovered=Uncovered.FORBID) for _ in range(2)],
        "left": [config.kwargs["BLOCK"] for config in OUTSIDE.cache.values()],
        "absent": watch(None, "strict", 512),  # as without a table: the choice stays
    }


if __name__ == "__main__":
    h100.answer_each(answer)
