"""A mix of request sizes, served in several ways; each way in a process of its own, empty caches.

    python docs/benchmarks/shapes.py --model examples/llama_block.py:LlamaBlocks
        --axis hidden_states:1:seqlen --buckets 16,256,560,1024,2048 --table TABLE --results OUT

Sizes are drawn with a fixed seed, as many small as large ones by ratio. Before anything is timed
each way has served every size once, in the order of the mix: what it compiles or measures then is
counted apart from what it does afterwards, which should be nothing. A request is timed from the
call until the device is done with it. The mix is served several times; the ways take turns.

- `eager`: uncompiled.
- `dynamic-smallest`, `dynamic-largest`: plain torch.compile in mode max-autotune-no-cudagraphs with
  the dim marked dynamic; the first request is the smallest size, or the largest.
- `static`: the same mode with static shapes, every size compiled and tuned for itself.
- `range`, `pad`: `warmup.compile` from the table, with these policies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("eager", "dynamic-smallest", "dynamic-largest", "static", "range", "pad")
TUNED = "max-autotune-no-cudagraphs"


def mix_of(largest: int, distinct: int, requests: int, seed: int) -> list[int]:
    """Return the sizes of the requests in order, 1 to *largest*, of so many distinct ones."""
    source = random.Random(seed)  # noqa: S311  the same mix each time is what is wanted
    sizes: set[int] = {largest}
    while len(sizes) < min(distinct, largest):
        sizes.add(min(largest, max(1, round(math.exp(source.uniform(0, math.log(largest)))))))
    return source.choices(sorted(sizes), k=requests)


def serve(settings: dict[str, Any]) -> dict[str, Any]:
    """Serve the mix in one way; return what it took and what it did."""
    import torch

    import warmup
    from warmup.inductor import connect
    from warmup.models import load_model

    way, (name, dim, axis) = settings["way"], settings["axis"].split(":")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(settings["model"])
    model = loaded.module.to(device)
    mix = mix_of(settings["largest"], settings["distinct"], settings["requests"], settings["seed"])
    assert loaded.example_inputs is not None
    inputs = {size: loaded.example_inputs(size).to(device) for size in sorted(set(mix))}

    def done() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    with connect().count_benchmarks() as sites, torch.no_grad(), contextlib.ExitStack() as open_:
        begin = time.perf_counter()
        call: Callable[[Any], Any] = model
        if way == "static":
            torch._dynamo.config.recompile_limit = len(inputs) + 1
            call = torch.compile(model, mode=TUNED, dynamic=False)
        elif way.startswith("dynamic"):
            call = torch.compile(model, mode=TUNED, dynamic=None)
            first = inputs[max(inputs) if way.endswith("largest") else min(set(inputs) - {1})]
            marked = first.detach()
            torch._dynamo.mark_dynamic(marked, int(dim))
            call(marked)
        elif way in {"range", "pad"}:
            served = warmup.compile(
                model,
                dims={name: {int(dim): axis}},
                buckets=settings["buckets"],
                table=settings["table"],
                policy=way,
                independent=(axis,),
            )
            open_.callback(served.close)
            served.warm(inputs[max(inputs)])
            call = served
        for size in mix:
            call(inputs[size])
        done()
        started = time.perf_counter() - begin
        before = benchmarks_and_graphs(sites)
        rounds = []
        for _ in range(settings["rounds"]):
            times = []
            for size in mix:
                start = time.perf_counter()
                call(inputs[size])
                done()
                times.append((time.perf_counter() - start) * 1e6)
            rounds.append(times)
        after = benchmarks_and_graphs(sites)
        found: dict[str, Any] = {}
        if way in {"range", "pad"}:
            report, table = served.report(), served.handle.report()
            found = {
                "outside": dict(report.outside),
                "recompiles_of_buckets": report.recompiles,
                "hits": sum(table.hits.values()),
                "misses": sum(table.misses.values()),
            }
    middle = [statistics.median(times) for times in zip(*rounds, strict=True)]
    by_size = {
        size: round(statistics.median(t for t, s in zip(middle, mix, strict=True) if s == size), 2)
        for size in inputs
    }
    return {
        "way": way,
        "start_seconds": round(started, 2),
        "benchmarks_at_start": before[0],
        "graphs_at_start": before[1],
        "benchmarks": after[0] - before[0],
        "recompiles": after[1] - before[1],
        "total_us": [round(sum(times), 1) for times in rounds],
        "p50_us": round(statistics.median(middle), 2),
        "p99_us": round(statistics.quantiles(middle, n=100)[98], 2),
        "us_by_size": by_size,
        **found,
    }


def benchmarks_and_graphs(sites: Any) -> tuple[int, int]:
    """Return how much was measured, and how many graphs were compiled, until now."""
    from torch._dynamo.utils import counters

    return sites.total(), counters["stats"]["unique_graphs"]


def run_apart(settings: dict[str, Any]) -> dict[str, Any]:
    """Serve in a process of its own, from empty caches."""
    with tempfile.TemporaryDirectory() as caches:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(settings)],
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": caches,
                "TRITON_CACHE_DIR": f"{caches}/t",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return {"way": settings["way"], "failed": done.stderr.strip().splitlines()[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Serve in every way in turn, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--one")
    parser.add_argument("--model")
    parser.add_argument("--axis")
    parser.add_argument("--buckets")
    parser.add_argument("--table")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--distinct", type=int, default=24)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    given = vars(parser.parse_args())
    if given["one"]:
        sys.stdout.write(json.dumps(serve(json.loads(given["one"]))) + "\n")
        return
    from warmup.bucket import parse_sizes
    from warmup.inductor import connect
    from warmup.runtime import Runtime

    out: Path = given.pop("results")
    ways = given.pop("ways").split(",")
    settings = {**given, "largest": max(parse_sizes(given["buckets"], "--buckets"))}
    runtime: Runtime = connect().runtime("auto")
    runs: list[dict[str, Any]] = []
    record = {
        "runtime": {
            "device": runtime.device.name,
            "torch": runtime.torch,
            "triton": runtime.triton,
        },
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "settings": {k: v for k, v in settings.items() if k != "one"},
        "mix": mix_of(settings["largest"], given["distinct"], given["requests"], given["seed"]),
        "runs": runs,
    }
    for _ in range(given["repeats"]):
        for way in ways:
            runs.append(run_apart({**settings, "way": way}))
            # After each way, so that an end in between costs only the one under way.
            out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            shown = {key: value for key, value in runs[-1].items() if key != "us_by_size"}
            sys.stdout.write(json.dumps(shown) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
