"""The server of one way of `shapes.py`: it serves a mix of sizes once for each line on stdin.

python served_mix.py SETTINGS     # as JSON; what it says are lines after a mark, as JSON
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

MARK = "SAID "
_TUNED = "max-autotune-no-cudagraphs"
_WAIT_CYCLES = 4_000_000  # two milliseconds at 2 GHz: longer than the host takes for a request
_TRIES = 3  # of a request for which the host came late nevertheless


def mix_of(largest: int, distinct: int, requests: int, seed: int) -> list[int]:
    """Return the sizes of the requests in order, 1 to *largest*, of so many distinct ones."""
    source = random.Random(seed)  # noqa: S311  the same mix each time is what is wanted
    sizes: set[int] = {largest}
    while len(sizes) < min(distinct, largest):
        sizes.add(min(largest, max(1, round(math.exp(source.uniform(0, math.log(largest)))))))
    return source.choices(sorted(sizes), k=requests)


def serve(settings: dict[str, Any]) -> dict[str, Any]:
    """Serve the mix in one way, once for each line on stdin; return what it took and did."""
    import torch

    from warmup.inductor import connect
    from warmup.models.loading import load_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(settings["model"])
    model = loaded.module.to(device)
    mix = mix_of(settings["largest"], settings["distinct"], settings["requests"], settings["seed"])
    assert loaded.example_inputs is not None
    inputs = {size: loaded.example_inputs(size).to(device) for size in sorted(set(mix))}

    def done() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    rounds: list[list[float]] = []
    on_device: list[list[tuple[float, bool]]] = []
    with connect().count_benchmarks() as sites, torch.no_grad(), contextlib.ExitStack() as open_:
        begin = time.perf_counter()
        call, served = make_call(settings, model, inputs)
        if served is not None:
            open_.callback(served.close)
        for size in mix:
            call(inputs[size])
        done()
        started = time.perf_counter() - begin
        before = benchmarks_and_graphs(sites)
        say({"start_seconds": round(started, 2)})
        for _ in sys.stdin:  # a line for each round
            rounds.append([microseconds(partial(call, inputs[size]), done) for size in mix])
            if device.type == "cuda":
                on_device.append([device_microseconds(partial(call, inputs[one])) for one in mix])
            say({"total_us": round(sum(rounds[-1]), 1)})
        after = benchmarks_and_graphs(sites)
        answered = answers_of(served) if served is not None else {}
    found: dict[str, Any] = {}
    if on_device:
        found["late"] = sum(is_late for timed in on_device for _, is_late in timed)
        found["device"] = sums_of([[time for time, _ in timed] for timed in on_device], mix)
    return {
        "way": settings["way"],
        "start_seconds": round(started, 2),
        "benchmarks_at_start": before[0],
        "graphs_at_start": before[1],
        "benchmarks": after[0] - before[0],
        "recompiles": after[1] - before[1],
        **sums_of(rounds, mix),
        **found,
        **answered,
    }


def make_call(settings: dict[str, Any], model: Any, inputs: dict[int, Any]) -> tuple[Any, Any]:
    """Return what is called to serve in this way; beside it itself if `warmup.compile` made it."""
    import torch

    import warmup

    way, (name, dim, axis) = settings["way"], settings["axis"].split(":")
    if way == "static":
        torch._dynamo.config.recompile_limit = len(inputs) + 1
        return torch.compile(model, mode=_TUNED, dynamic=False), None
    if way.startswith("dynamic"):
        call = torch.compile(model, mode=_TUNED, dynamic=None)
        first = inputs[max(inputs) if way.endswith("largest") else min(set(inputs) - {1})]
        marked = first.detach()
        torch._dynamo.mark_dynamic(marked, int(dim))
        call(marked)
        return call, None
    if way in {"range", "pad"}:
        served = warmup.compile(
            model,
            dims={name: {int(dim): axis}},
            buckets=settings["buckets"],
            table=settings["table"],
            policy=way,
            independent=(axis,),
        )
        served.warm(inputs[max(inputs)])
        return served, served
    return model, None


def answers_of(served: Any) -> dict[str, Any]:
    """Return what a compiled model and its table say that they did."""
    report, table = served.report(), served.handle.report()
    return {
        "outside": dict(report.outside),
        "recompiles_of_buckets": report.recompiles,
        "hits": sum(table.hits.values()),
        "misses": sum(table.misses.values()),
    }


def sums_of(rounds: list[list[float]], mix: list[int]) -> dict[str, Any]:
    """Return the total of each round, and what requests take by their medians of the rounds."""
    middle = [statistics.median(times) for times in zip(*rounds, strict=True)]
    by_size = {
        size: round(statistics.median(t for t, s in zip(middle, mix, strict=True) if s == size), 2)
        for size in sorted(set(mix))
    }
    return {
        "total_us": [round(sum(times), 1) for times in rounds],
        "p50_us": round(statistics.median(middle), 2),
        "p99_us": round(statistics.quantiles(middle, n=100)[98], 2),
        "us_by_size": by_size,
    }


def microseconds(call: Callable[[], object], done: Callable[[], object]) -> float:
    """Return what *call* took until the device was *done*."""
    start = time.perf_counter()
    call()
    done()
    return (time.perf_counter() - start) * 1e6


def device_microseconds(call: Callable[[], object]) -> tuple[float, bool]:
    """Return what the device took for *call*, and whether the host was late at every try."""
    import torch

    wait: Any = torch.cuda._sleep
    is_late, tries = True, 0
    while is_late and tries < _TRIES:
        tries += 1
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wait(_WAIT_CYCLES)
        begin.record()
        call()
        end.record()
        is_late = begin.query()
        end.synchronize()
    return begin.elapsed_time(end) * 1e3, is_late


def say(words: dict[str, Any]) -> None:
    """Print one line for the process that waits for it."""
    sys.stdout.write(f"{MARK}{json.dumps(words)}\n")
    sys.stdout.flush()


def benchmarks_and_graphs(sites: Any) -> tuple[int, int]:
    """Return how much was measured, and how many graphs were compiled, until now."""
    from torch._dynamo.utils import counters

    return sites.total(), counters["stats"]["unique_graphs"]


if __name__ == "__main__":
    say(serve(json.loads(sys.argv[1])))
