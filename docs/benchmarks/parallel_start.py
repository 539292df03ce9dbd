"""Start a server by `warmup.compile`: its buckets one after the other, and by `CompiledModel.warm`.

    python parallel_start.py --model examples/llama_block.py:LlamaBlocks --policy exact
        --seqlens 16,256,560,1024,2048 --table tables/nvidia-h200/llama-blocks.bf16.json

Each start is a process of its own. It begins with empty caches, and once more over those it left.
It installs the table, loads the model, and compiles and calls every bucket once; seconds are those
of the last, and the others stand beside them. *Pause* stands for more to load than this model has:
the process sleeps as long before it compiles, while inductor's workers start. The ways take turns,
and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS = ("one after the other", "together")
CACHES = ("empty", "warm")
MARK = "RESULT "


def start(case: dict[str, Any]) -> dict[str, Any]:
    """Start once, in this process."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    import warmup
    from warmup.buckets.bucket import Bucket, parse_inputs
    from warmup.inductor import connect
    from warmup.inductor.machine import resolve_device
    from warmup.models.loading import Inputs, load_model, make_inputs, parse_dtype
    from warmup.serving.compiled.find_dims import find_dims

    began = time.perf_counter()
    handle = None
    if case["table"]:  # first, as a server does: inductor's workers start while the model is loaded
        handle = warmup.install(case["table"], device=case["device"])
    installed = time.perf_counter()
    workers_ready: list[float] = []
    if (workers := AsyncCompile._ready_future) is not None:
        workers.add_done_callback(lambda _: workers_ready.append(time.perf_counter()))
    device = resolve_device(case["device"])
    loaded = load_model(case["model"])
    dtype = parse_dtype(case["dtype"], "dtype") if case["dtype"] else None
    model = loaded.module.to(device=device, dtype=dtype).eval()
    specs, sizes = parse_inputs(case["inputs"]), case["seqlens"]

    def make(bucket: Bucket) -> Inputs:
        return make_inputs(loaded, specs, bucket, device, dtype)

    made = make(Bucket((("seqlen", sizes[0]),)))
    dims = find_dims(model, make, Bucket((("seqlen", sizes[-1]),)))
    if device.type == "cuda":
        torch.cuda.synchronize()
    time.sleep(case["pause"])
    with connect().count_benchmarks() as sites, torch.no_grad():
        ready = time.perf_counter()
        served = warmup.compile(
            model,
            dims=dims,
            buckets=sizes,
            policy=case["policy"],
            independent=("seqlen",),
            mode=case["mode"],
        )
        if case["way"] == "together":
            served.warm(*made.args, **made.kwargs)
        else:
            for bucket in served._buckets:
                served._call(bucket, made.args, made.kwargs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - ready
    report = served.report()
    counters = torch._dynamo.utils.counters["inductor"]
    found = {
        "seconds": round(seconds, 3),
        "install_seconds": round(installed - began, 3),
        "load_seconds": round(ready - installed, 3),
        # How long after that inductor's workers were ready; None if they were not, or are not used.
        "workers_after_seconds": round(workers_ready[0] - ready, 3) if workers_ready else None,
        "benchmarks": sum(sites.values()),
        "artifacts": dict(report.artifacts),
        "recompiles": report.recompiles,
        "kernels": counters["async_compile_cache_miss"],
        "graphs_from_cache": counters["fxgraph_cache_hit"],
        "torch": torch.__version__,
        "threads": torch._inductor.async_compile.get_compile_threads(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }
    if handle is not None:
        told = handle.report()
        found |= {"hits": sum(told.hits.values()), "misses": sum(told.misses.values())}
        handle.close()
    return found


def start_apart(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Start once in a process of its own, with its caches in *folder*."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)],
        env={**os.environ, **caches},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(MARK))
    found: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return found


def compare(case: dict[str, Any], rounds: int, kept: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return every start, over caches of the kinds *kept*: the first of CACHES, or both."""
    found = []
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                for caches in kept:
                    facts = {"way": way, "caches": caches, "round": number}
                    found.append(facts | start_apart(case | {"way": way}, folder))
                    sys.stderr.write(f"{facts}: {found[-1]['seconds']} s\n")
    return found


def table_of(starts: list[dict[str, Any]]) -> str:
    """Return the medians as a table."""
    head = ("caches", *(f"{way}, s" for way in WAYS), "ratio", "benchmarks", "recompiles")
    lines = [head, ("---",) * len(head)]
    for caches in dict.fromkeys(one["caches"] for one in starts):
        those = [one for one in starts if one["caches"] == caches]
        medians = [
            statistics.median(one["seconds"] for one in those if one["way"] == way) for way in WAYS
        ]
        lines.append(
            (
                caches,
                *(f"{median:.1f}" for median in medians),
                f"{medians[1] / medians[0]:.2f}",
                str(sum(one["benchmarks"] for one in those)),
                str(sum(one["recompiles"] for one in those)),
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="examples/llama_block.py:LlamaBlocks")
    parser.add_argument("--seqlens", default="16,256,560,1024,2048")
    parser.add_argument("--input", action="append", default=[], dest="inputs")
    parser.add_argument("--table")
    parser.add_argument("--policy", default="range", choices=("range", "pad", "exact"))
    parser.add_argument("--mode")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between load and compile")
    parser.add_argument("--empty-only", action="store_true", help="no second start")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = parse()
    if asked.case:
        sys.stdout.write(MARK + json.dumps(start(json.loads(asked.case))) + "\n")
        return
    names = ("model", "inputs", "table", "policy", "mode", "device", "dtype", "pause")
    case = {name: getattr(asked, name) for name in names}
    case["seqlens"] = [int(size) for size in asked.seqlens.split(",")]
    starts = compare(case, asked.rounds, CACHES[:1] if asked.empty_only else CACHES)
    if asked.out:
        asked.out.write_text(json.dumps({"case": case, "starts": starts}, indent=1) + "\n")
    sys.stdout.write(table_of(starts))


if __name__ == "__main__":
    main()
