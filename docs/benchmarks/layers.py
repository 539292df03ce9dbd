"""Start and steady state of repeated layers: whole graph, shared layers, nested regions, one layer.

    python docs/benchmarks/layers.py --out layers.json                      # an H100 or H200
    python docs/benchmarks/layers.py --width small --device cpu --out layers-cpu.json

Each way runs in a process of its own with empty caches, and serves every bucket once: that is its
start, in seconds from the import of inductor. In ``steady``, ``whole``, ``once`` and ``each`` run
in one process, in turns, from the caches that their starts left: that is their steady state, the
ratios of the medians. ``cpu`` is the time of this process and its children on all cores, which
other processes disturb less. ``peak MiB`` is the GPU memory of the start, and of a call after it.

The way ``auto``, which is not among the default ones, measures sharing on a GPU and takes the
faster way in each bucket; its ``costs`` are the times of shared layers over those in one graph, of
two layers. ``max-autotune`` is the whole graph, cold, in that mode without CUDA graphs;
``mega-cache`` is the whole graph from what `torch.compiler.save_cache_artifacts` saved in another
process with empty caches. Neither is among the default ways. ``timers`` are torch's own, in each
bucket, one inside another. With ``--table`` all that `warmup.compile` serves is served from that
table, with ``--bundle`` from its bundle too.
``--profile BUCKET`` adds the functions of Python that the first call of that bucket spent most
time in. Results are written after each run, a run that is in the file is not made again, and no run
starts after ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import cProfile
import io
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WAYS = ("one", "once", "nested", "each", "whole", "steady")
SAVING, SAVED = "saving", "mega-cache"
ARTIFACTS = "LAYERS_ARTIFACTS"  # the variable with the path of what torch saved
SERVED = ("once", "whole", "auto")  # by warmup.compile
STEADY = ("whole", "once")
LEAST_TIMED = 0.1  # seconds of a timer of torch's, to be worth a line


def main() -> None:
    """Run what is asked for and missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", choices=("8b", "small"), default="8b")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--buckets", default="1,16,128,560,2048")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--table")
    parser.add_argument("--bundle")
    parser.add_argument("--profile", type=int)
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--child")
    asked = parser.parse_args()
    if asked.child:
        run_child(asked)
        return
    began = time.monotonic()
    found: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    with tempfile.TemporaryDirectory() as kept:
        for way in asked.ways.split(","):
            name = f"{way}{described(asked)}, {asked.mode}"
            if name in found or time.monotonic() - began > asked.limit:
                continue
            left = max(30.0, asked.limit - (time.monotonic() - began))
            found[name] = run_way(way, Path(kept), left)
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
            sys.stdout.write(f"{name}: {json.dumps(found[name])}\n")


def described(asked: argparse.Namespace) -> str:
    """Return what serves beside the model, for the name of a run."""
    if asked.bundle:
        return " with the bundle"
    return " with the table" if asked.table else ""


def run_way(way: str, kept: Path, seconds: float) -> Any:
    """Return what a process with empty caches measured, or why it failed.

    The caches of both ways whose steady state is compared are added to the folder *kept*, which
    that comparison begins with.
    """
    if way == SAVED:
        saved = run_way(SAVING, kept, seconds)
        if "failed" in saved:
            return saved
    with tempfile.TemporaryDirectory() as empty:
        folder = kept if way == "steady" else Path(empty)
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}", "TRITON_CACHE_DIR": f"{folder}/triton"}
        try:
            done = subprocess.run(
                [sys.executable, *sys.argv, "--child", way],
                env={**os.environ, **caches, ARTIFACTS: f"{kept / 'artifacts'}"},
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"more than {seconds:.0f} s"}
        if way in STEADY:
            shutil.copytree(empty, kept, dirs_exist_ok=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"failed": lines[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def run_child(asked: argparse.Namespace) -> None:
    """Measure one way, and print it as a line of JSON."""
    import torch
    from llama_layers import make_layers

    sizes = [int(size) for size in asked.buckets.split(",")]
    torch.manual_seed(0)
    layers = 1 if asked.child == "one" else asked.layers
    dtype = torch.float32 if asked.device == "cpu" else torch.bfloat16
    is_nested = asked.child == "nested"
    model = make_layers(layers, asked.width, asked.device, dtype, is_nested=is_nested)
    inputs = {
        size: torch.randn(size, model.features, dtype=dtype, device=asked.device) for size in sizes
    }
    with torch.no_grad():
        if asked.child == "steady":
            measured = steady(model, inputs, asked)
        else:
            synchronize(asked.device)
            measured = start(model, inputs, asked, asked.child)[1]
    sys.stdout.write(json.dumps(measured) + "\n")


def start(
    model: Any, inputs: dict[int, Any], asked: argparse.Namespace, way: str
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the served model, and what serving each bucket once took."""
    began, used = time.perf_counter(), sum(os.times()[:4])
    import torch
    import torch._inductor.compile_fx  # what every way needs

    imported = time.perf_counter() - began
    torch._dynamo.config.recompile_limit = 64
    serve = serving(model, [*inputs], asked, way)
    seconds: dict[int, float] = {}
    timers: dict[int, dict[str, float]] = {}
    measured_calls: list[str] = []
    from torch._dynamo.utils import compilation_time_metrics

    for size, x in inputs.items():
        before = time.perf_counter()
        compilation_time_metrics.clear()
        with profiled(measured_calls) if size == asked.profile else contextlib.nullcontext():
            serve(x)
            synchronize(asked.device)
        seconds[size] = round(time.perf_counter() - before, 2)
        sums = {name: round(sum(parts), 2) for name, parts in compilation_time_metrics.items()}
        timers[size] = {name: total for name, total in sums.items() if total >= LEAST_TIMED}
    measured: dict[str, Any] = {
        "start": round(time.perf_counter() - began, 2),
        "import": round(imported, 2),
        "cpu": round(sum(os.times()[:4]) - used, 2),
        "buckets": seconds,
        "timers": timers,
    }
    if measured_calls:
        measured["profile"] = measured_calls
    if asked.device != "cpu":
        measured["peak MiB"] = [torch.cuda.max_memory_allocated() // 2**20]
        torch.cuda.reset_peak_memory_stats()
        for x in inputs.values():
            serve(x)
        measured["peak MiB"].append(torch.cuda.max_memory_allocated() // 2**20)
    if way == SAVING and (saved := torch.compiler.save_cache_artifacts()) is not None:
        Path(os.environ[ARTIFACTS]).write_bytes(saved[0])
    if way in SERVED:
        measured["report"] = str(serve.report())
    if way == "auto":
        measured["costs"] = dict(serve.report().layers.costs)
    return serve, measured


def serving(
    model: Any, sizes: list[int], asked: argparse.Namespace, way: str
) -> Callable[..., Any]:
    """Return what serves *model* in one *way*; nothing is compiled yet."""
    import torch

    if way in SERVED:
        import warmup

        return warmup.compile(
            model,
            dims={"x": {0: "n"}},
            buckets={"n": sorted(sizes)},
            policy="exact",
            mode=None if asked.mode == "default" else asked.mode,
            layers=way,
            table=asked.table,
            bundle=asked.bundle,
        )
    if way == "each":
        for layer in model.layers:
            layer.compile(dynamic=False, mode=asked.mode)
        return model
    if way == SAVED:
        torch.compiler.load_cache_artifacts(Path(os.environ[ARTIFACTS]).read_bytes())
    mode = "max-autotune-no-cudagraphs" if way == "max-autotune" else asked.mode
    return torch.compile(model, dynamic=False, fullgraph=True, mode=mode)


@contextlib.contextmanager
def profiled(lines: list[str]) -> Iterator[None]:
    """Add to *lines* the functions with the most seconds, those that they call included."""
    with cProfile.Profile() as profile:
        yield
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(150)
    lines.extend(line.strip() for line in text.getvalue().splitlines() if line.strip())


def steady(model: Any, inputs: dict[int, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """Return the time of a call in each way by bucket, and its ratio to that of the whole graph.

    Layers that are compiled each by itself are not captured as one CUDA graph, and are left out of
    such a mode.
    """
    served = {}
    for way in STEADY:
        served[way], _ = start(model, inputs, asked, way)
        served[way].close()
    if asked.mode == "default":
        same_weights = {id(weight): weight for weight in model.parameters()}
        served["each"], _ = start(copy.deepcopy(model, same_weights), inputs, asked, "each")
    found: dict[str, Any] = {}
    for size, x in inputs.items():
        times: dict[str, list[float]] = {way: [] for way in served}
        # A CUDA graph writes its next output into the same memory.
        outputs = {way: call(x).clone() for way, call in served.items()}
        for call in served.values():
            for _ in range(5):
                call(x)
        for _ in range(30):
            for way, call in served.items():
                synchronize(asked.device)
                before = time.perf_counter()
                for _ in range(5):
                    call(x)
                synchronize(asked.device)
                times[way].append((time.perf_counter() - before) / 5 * 1e6)
        medians = {way: round(statistics.median(each), 1) for way, each in times.items()}
        distance = (outputs["once"] - outputs["whole"]).float().norm() / outputs[
            "whole"
        ].float().norm()
        found[str(size)] = {
            "us": medians,
            "least us": {way: round(min(each), 1) for way, each in times.items()},
            **{
                f"{way} over whole": round(median / medians["whole"], 3)
                for way, median in medians.items()
                if way != "whole"
            },
            "distance": float(distance),
        }
    return found


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
