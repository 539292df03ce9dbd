"""One server start, in a process of its own: compile every bucket and return its first output.

    python start.py '{"model": "examples/mlp.py:MLP", "seqlens": [16, 64], "start": "table", ...}'

Prints one JSON object: seconds until the first outputs of all buckets, benchmarks by site, lookups,
and (with "steady": true) the median microseconds of a call per bucket afterwards. The caches are
whatever TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR name: the driver gives each start empty ones.
Benchmarks are counted twice: by site, as warmup's own watch sees them, and at
``CachingAutotuner.bench``, below that watch. "mega" names the file of torch's own cache artifacts:
a max-autotune start writes it, a mega-cache start loads it. "bundles" names that of each start
with one; ``kernels_compiled`` are those that it did not hold.
"""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import warmup
from warmup.buckets.bucket import Bucket, parse_inputs
from warmup.inductor import connect
from warmup.models.loading import Inputs, load_model, make_inputs, parse_dtype

# How each kind of start compiles. CPU needs freezing for its C++ GEMM template to be a candidate.
STARTS: dict[str, dict[str, Any]] = {
    "default": {},
    "default-freezing": {},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
    "max-autotune-gemm": {"options": {"max_autotune_gemm": True}},
    "mega-cache": {"mode": "max-autotune-no-cudagraphs"},
    "table": {},
    "table-warm": {},
    "table-max-autotune": {"mode": "max-autotune-no-cudagraphs"},
    "bundle": {},
    "bundle-graphs": {},
}
_REPLAYS = 200


def steady_us(call: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of one call in microseconds, after warming up.

    On a GPU: replays of a CUDA graph of the call, timed by events, so that host time stays out.
    """
    for _ in range(3):
        call()
    if device.type == "cpu":
        samples = []
        for _ in range(30):
            begin = time.perf_counter()
            call()
            samples.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(samples)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(_REPLAYS)]
    for begin_event, end_event in pairs:
        begin_event.record()
        graph.replay()
        end_event.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in pairs)


def count_autotuner() -> Counter[str]:
    """Count every config that inductor's CachingAutotuner times, below any other wrapper."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    counts: Counter[str] = Counter()
    original = CachingAutotuner.bench

    @functools.wraps(original)
    def bench(*args: Any, **kwargs: Any) -> Any:
        counts["bench"] += 1
        return original(*args, **kwargs)

    CachingAutotuner.bench = bench
    return counts


def phase_seconds() -> dict[str, float]:
    """Return dynamo's own sums of time by phase; phases nest, so they do not add up."""
    names, seconds = torch._dynamo.utils.compile_times(repr="csv", aggregate=True)
    sums = {name: round(float(text), 2) for name, text in zip(names, seconds, strict=True)}
    largest = sorted(sums.items(), key=lambda pair: -pair[1])
    return {name: value for name, value in largest if value >= 0.1}


def compile_all(
    compiled: Callable[..., Any], inputs: list[Inputs], device: torch.device
) -> list[float]:
    """Call *compiled* once per bucket, which compiles it; return the seconds of each."""
    seconds = []
    for made in inputs:
        before = time.perf_counter()
        compiled(*made.args, **made.kwargs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - before, 3))
    return seconds


def lookups(handle: warmup.Handle) -> dict[str, Any]:
    """Close *handle* and return what it counted."""
    report, bundle = handle.report(), handle.bundle
    handle.close()
    unpacked = {}
    if bundle is not None:
        compiled = len(bundle.compiled_besides())
        unpacked = {"bundle_refused": bundle.refused, "kernels_compiled": compiled}
    return {
        **unpacked,
        "hits": sum(report.hits.values()),
        "misses": sum(report.misses.values()),
        "uncovered": dict(report.uncovered),
        "from_cache": report.from_cache,
        "digest": report.digest,
    }


class Watch:
    """Counts benchmarks from `begin` on; beginning imports inductor, as a first compile would."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.sites: Counter[str] = Counter()
        self.timed: Counter[str] = Counter()

    def begin(self) -> None:
        """Count from here on."""
        self.timed = count_autotuner()
        self.sites = self._stack.enter_context(connect().count_benchmarks())

    def end(self) -> dict[str, Any]:
        """Stop counting, and return the counts."""
        self._stack.close()
        return {
            "benchmarks": sum(self.sites.values()),
            "benchmarks_by_site": dict(self.sites),
            "configs_timed": self.timed["bench"],
        }


def start(case: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Start one server and return what was measured.

    A server with a table installs it before it loads its model; ``seconds`` are those of importing
    inductor, of installing and of compiling, without loading, and without making the context of the
    GPU, which every server needs: it is there before.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    mega = Path(case.get("mega", "mega.bin"))
    blob = mega.read_bytes() if case["start"] == "mega-cache" else None
    watch, handle = Watch(), None
    import_s = 0.0
    begin = time.perf_counter()
    if case["start"].startswith(("table", "bundle")):
        watch.begin()
        import_s = time.perf_counter() - begin
        handle = warmup.install(
            case["table"],
            on_miss=case.get("on_miss", "fallback"),
            bundle=case.get("bundles", {}).get(case["start"]),
        )
    install_s = time.perf_counter() - begin
    model, inputs = load(case, device)
    settings = dict(STARTS[case["start"]])
    result: dict[str, Any] = {"start": case["start"]}
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        begin = time.perf_counter()
        if handle is None:
            watch.begin()
            import_s = time.perf_counter() - begin
        if device.type == "cpu" and ("autotune" in case["start"] or "freezing" in case["start"]):
            torch._inductor.config.freezing = True
        if blob is not None:
            torch.compiler.load_cache_artifacts(blob)
        compiled = torch.compile(model, dynamic=False, **settings)
        result["seconds_by_bucket"] = compile_all(compiled, inputs, device)
        result["seconds"] = round(install_s + time.perf_counter() - begin, 3)
        result["install_seconds"] = round(install_s, 3)
        result["import_seconds"] = round(import_s, 3)
        if device.type == "cuda":
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
        if case.get("steady"):
            result["steady_us"] = [
                round(steady_us(lambda made=made: compiled(*made.args, **made.kwargs), device), 1)
                for made in inputs
            ]
    result |= watch.end()
    result["phase_seconds"] = phase_seconds()
    if case["start"] == "max-autotune" and device.type == "cuda":
        artifacts = torch.compiler.save_cache_artifacts()
        mega.write_bytes(artifacts[0] if artifacts else b"")
        result["mega_bytes"] = mega.stat().st_size
    return result | (lookups(handle) if handle is not None else {})


def load(case: dict[str, Any], device: torch.device) -> tuple[torch.nn.Module, list[Inputs]]:
    """Return the model on *device* and the inputs of every bucket."""
    model = load_model(case["model"])
    dtype = parse_dtype(case["dtype"], "dtype") if case.get("dtype") else None
    model.module.to(device=device, dtype=dtype)
    buckets = [Bucket((("seqlen", seqlen),)) for seqlen in case["seqlens"]]
    specs = parse_inputs(case.get("inputs", []))
    inputs = [make_inputs(model, specs, bucket, device, dtype) for bucket in buckets]
    return model.module, inputs


def device_of(wanted: str) -> torch.device:
    """Return the device to serve on, without importing inductor."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def main() -> None:
    case = json.loads(sys.argv[1])
    torch.manual_seed(0)
    result = start(case, device_of(case.get("device", "auto")))
    result["process_seconds"] = round(time.time() - case["spawned"], 3)
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
