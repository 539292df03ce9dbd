"""Run two ``@triton.autotune`` kernels under tables for the stated H100; print what was measured.

    echo '{"scenario": "graph"}' | python cuda_user_kernels.py

``graph``: inductor's kernel for a graph with one; ``outside``: Triton's own tuner, with all hooks of
a user. Times are stated, launches void; each scenario is built, then served from its row and not.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
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

sys.path.insert(0, str(Path(__file__).parent / "models"))
import user_kernels

Json = dict[str, Any]
SEARCHED = frozenset({"autotune"})
WORK = fake_gpu.pretend_launches(lambda named: abs(named["BLOCK"] - 1000), lambda _: False)
LOG: list[str] = []  # what Triton launches, and calls of the user's hooks


def launch(_function: Any, *_args: Any, **words: Any) -> None:
    LOG.append(str(words["BLOCK"]))


def bench(call: Any, quantiles: Any) -> list[float]:
    call()
    time = float(abs(int(LOG[-2]) - 1000))  # the post-hook comes last
    return [time / 1000, time / 2000, time / 500]


JITFunction.run = launch  # type: ignore[method-assign,assignment]


def outside(**words: Any) -> Any:
    """Return a kernel of Triton's own tuner, with hooks that say that they ran."""
    return triton.autotune(
        configs=user_kernels.CONFIGS,
        key=["n"],
        pre_hook=lambda _, reset_only=False: LOG.append("reset" if reset_only else "pre"),
        post_hook=lambda *_, **__: LOG.append("post"),
        do_bench=bench,
        **words,
    )(user_kernels.add_outside.fn)


def call_outside(kernel: Any, *counts: int, dtype: torch.dtype = torch.float32) -> None:
    for count in counts:
        kernel[(1,)](torch.zeros(count, dtype=dtype), count)


def graph(count: int = 4096) -> Any:
    """Return inductor's kernel for a graph that has a user's, loaded as its code does it."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel = torch.library.wrap_triton(user_kernels.scale_in_graph)
        kernel[user_kernels.grid(x.numel())](x, y, x.numel(), 2.0)
        return y

    mode = h100.fakes()
    with mode, torch.no_grad():
        inputs = [h100.empty(count)]
        traced = make_fx(scale)(*inputs)
    ((name, source),) = h100.kernels_in(h100.generate(traced, inputs, mode))
    with torch._inductor.config.patch({"compile_threads": 1}):
        return AsyncCompile().triton(name, source, device_str="cuda")


def call_graph(make: Any, *counts: int) -> None:
    for count in counts:
        kernel = make()
        for _ in range(2):
            kernel.run(*(torch.zeros(count) for _ in range(2)), count, 2.0, stream=0)


def steps(call: Any, make: Any) -> Json:
    """Build the row of a call with 4096 elements, and serve it, another size, and other rows."""
    tuned: list[Tuned] = []
    tuner = Tuner(torch.device("cpu"), Method(), {})
    known: Json = {}

    def serve(rows: dict[str, Winner], mode: str, *counts: int, **words: Any) -> Json:
        LOG.clear()
        WORK.clear()
        words = {"searches": SEARCHED, **words}
        with fresh_cache():
            _, result = h100.serve(
                functools.partial(call, known.get("kernel", make), *counts),
                *(rows, mode, tuner),
                **words,
            )
        return {**result, "log": [*LOG], "timed": dict(WORK.timed), "launched": [*WORK.launched]}

    if call is call_outside:
        known["kernel"] = make()
    built = serve({}, "tune", 4096, 4096, on_tuned=tuned.append)
    (one,) = tuned
    rows = {one.key: one.row.winner}
    first = {one.key: one.timings[0].winner}
    strange = {
        one.key: Winner(
            one.row.winner.family,
            one.row.winner.uid,
            tuple((name, 3 if name == "BLOCK" else value) for name, value in one.row.winner.kwargs),
        )
    }
    again = serve(rows, "tune", 4096)
    return {
        "key": one.key,
        "winner": dict(one.row.winner.kwargs),
        "times": {str(each.winner): each.time_us for each in one.timings},
        "built": built,
        "again": again,
        "hit": serve(rows, "strict", 4096, 4096),
        "first": serve(first, "strict", 4096),
        "missed": serve(rows, "fallback", 64, 64),
        "strict": serve(rows, "strict", 128),
        "forbidden": serve({}, "fallback", 256, on_uncovered=Uncovered.FORBID),
        "strange": serve(strange, "fallback", 4096),
        "earlier table": serve({}, "fallback", 512, searches=frozenset()),
    }


def answer(case: Json) -> Json:
    if case["scenario"] == "graph":
        return steps(functools.partial(call_graph), graph)
    return steps(call_outside, outside)


if __name__ == "__main__":
    h100.answer_each(answer)
