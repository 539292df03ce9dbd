"""The process that is measured: ``python server.py FD``, started by `driver.py`.

It answers requests to start a server, to pack what a start compiled, to serve a mix of request
sizes, and for the facts of the machine. Its caches are those that its environment names. With a
server as JSON instead of FD it calls every bucket once: a program that `warmup build` records.

A start goes through phases: importing torch and warmup, importing inductor, installing the table,
loading the model, and compiling and calling every bucket once. A server with a table installs it
before it loads its model; another server imports inductor when it compiles. ``seconds`` are those
of importing inductor, installing and calling; torch, the model and the context of the GPU are what
every server needs. ``phases`` and ``phases_by_bucket`` say what the seconds were spent on, from
torch's own timers. Benchmarks are counted twice: by site, as warmup's own watch sees them, and at
``CachingAutotuner.bench``, below that watch (``configs_timed``).
"""

# ruff: noqa: E402  the time before and after the imports is measured

from __future__ import annotations

import time

_BEGUN = time.monotonic()

import contextlib
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from mix_server import MixServer

import warmup
from warmup.bench.compare import serve
from warmup.core.buckets import Bucket, parse_buckets, parse_inputs
from warmup.core.phases import Phase, PhaseClock, added, document_of
from warmup.inductor import connect
from warmup.models.loading import Inputs, load_model, make_inputs
from warmup.serving.compiled_buckets import find_dims
from warmup.table.codec import digest_of
from warmup.table.store import read

_TORCH_S = round(time.monotonic() - _BEGUN, 3)
_TUNED = {"mode": "max-autotune-no-cudagraphs"}
# How torch.compile is called for a kind of start, where not as by default with static shapes.
_SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("max-autotune", "max-autotune-warm", "mega-cache", "static"), _TUNED),
    "dynamic-smallest": {**_TUNED, "dynamic": None},
    "dynamic-largest": {**_TUNED, "dynamic": None},
    "max-autotune-gemm": {"options": {"max_autotune_gemm": True}},
}
LAYERS = "-layers"  # ends a kind that compiles each layer, not the model
# By warmup.compile, which installs the table.
_POLICIES: dict[str, dict[str, str]] = {
    "range": {"policy": "range"},
    "pad": {"policy": "pad"},
    "pad-graphs": {"policy": "pad", "mode": "reduce-overhead"},
}
_GRAPH_CALLS = 3  # of a size, until its CUDA graph is recorded and was replayed
_TIMED_CALLS = 20

Answer = dict[str, Any]


@dataclass(kw_only=True)
class Server:
    """A server that starts. ``kind`` says how it compiles, and whether a table answers.

    ``dims`` have the form of ``--dims`` and name the buckets. For a mix ``seqlens`` are the sizes
    of the inputs, and of the buckets where ``buckets`` does not say. ``layers`` names the modules
    that a kind with `LAYERS` compiles, each for itself. With ``records`` each call is recorded in a
    CUDA graph after the first, and replayed. ``artifacts`` is the file of torch's own cache
    artifacts, which `max-autotune` writes on a GPU and `mega-cache` loads. ``spawned`` is when the
    process was started, by the clock of `time.monotonic`.
    """

    kind: str
    spawned: float
    model: str
    dims: Sequence[str] = ()
    seqlens: Sequence[int] = ()
    buckets: Sequence[int] = ()
    inputs: Sequence[str] = ()
    device: str = "auto"
    table: str | None = None
    bundle: str | None = None
    artifacts: str | None = None
    layers: str = ""
    records: bool = False

    def __post_init__(self) -> None:
        by_default = "cuda" if torch.cuda.is_available() else "cpu"
        self.on = torch.device(by_default if self.device == "auto" else self.device)
        self.is_gpu = self.on.type == "cuda"
        self._open, self._timed = contextlib.ExitStack(), Counter[str]()
        self.handle: Any = None
        self.served: Any = None

    def start(self) -> Answer:
        """Go through all phases and return what was measured."""
        torch.manual_seed(0)
        self.synchronize()  # which makes the context of a GPU
        saved = Path(self.artifacts or "").read_bytes() if self.kind == "mega-cache" else None
        clock, ready = PhaseClock(), [0.0]
        if self.kind.startswith(("table", "bundle")):
            self._count(clock)
            with clock.phase(Phase.INSTALL):
                os.environ["WARMUP_DEVICE"] = self.device
                self.handle = warmup.install(self.table, bundle=self.bundle or False, freezing=True)
            ready = _watch_workers()
        with clock.phase(Phase.LOAD):
            self.load()
        if self.handle is None:
            self._count(clock)
        before, begun = clock.take(), time.monotonic()
        if saved is not None:
            torch.compiler.load_cache_artifacts(saved)
            clock.charge(Phase.CACHES)
        by_bucket = []
        for number, call in enumerate(self.first_calls()):
            with clock.phase(Phase.FIRST_CALLS):
                call()
                if self.records:
                    self.calls[number] = _recorded(call)
                self.synchronize()
            by_bucket.append(clock.take())
        call_s = time.monotonic() - begun
        install_s = before[Phase.IMPORT] + before[Phase.INSTALL] if self.handle else 0.0
        return {
            **self._facts([round(sum(phases.values()), 3) for phases in by_bucket]),
            "call_us": [self._median_us(call) for call in self.calls],
            "phases": document_of(added((before, *by_bucket))),
            "phases_by_bucket": [document_of(phases) for phases in by_bucket],
            "import_seconds": round(before[Phase.IMPORT], 3),
            "load_seconds": round(before[Phase.LOAD], 3),
            "call_seconds": round(call_s, 3),
            "torch_seconds": _TORCH_S,
            "install_seconds": round(install_s, 3),
            "seconds": round((install_s or before[Phase.IMPORT]) + call_s, 3),
            "workers_after_seconds": round(ready[0] - begun, 3) if ready and self.handle else None,
            **self.counts(),
        }

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_gpu:
            torch.cuda.synchronize(self.on)

    def _count(self, clock: PhaseClock) -> None:
        """Import inductor, count benchmarks from now on, and let torch's timers drive *clock*."""
        with clock.phase(Phase.IMPORT):
            from torch._inductor.runtime.triton_heuristics import CachingAutotuner

            inductor = connect()
        self._open.enter_context(inductor.time_phases(clock))
        original = CachingAutotuner.bench

        @wraps(original)
        def bench(*args: Any, **kwargs: Any) -> Any:
            self._timed["configs"] += 1
            return original(*args, **kwargs)

        CachingAutotuner.bench = bench
        self._sites = self._open.enter_context(inductor.count_benchmarks())

    def counts(self) -> Answer:
        """Return what was measured and compiled until now."""
        return {
            "benchmarks": self._sites.total(),
            "benchmarks_by_site": dict(self._sites),
            "configs_timed": self._timed.total(),
            "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        }

    def _median_us(self, call: Callable[[], object]) -> float:
        """Return what *call* takes until the device is done with it, the median of several."""
        times = []
        for _ in range(_TIMED_CALLS):
            begun = time.perf_counter()
            call()
            self.synchronize()
            times.append(time.perf_counter() - begun)
        return round(statistics.median(times) * 1e6, 1)

    def load(self) -> None:
        """Load the model and make the inputs of every bucket."""
        loaded, specs = load_model(self.model), parse_inputs(self.inputs)
        self.module = loaded.module.to(self.on)

        def make(bucket: Bucket) -> Inputs:
            return make_inputs(loaded, specs, bucket, self.on, None)

        buckets = parse_buckets(self.seqlens or None, self.dims or None)
        self.made = [make(bucket) for bucket in buckets]
        has_ranges = "dynamic" in self.kind or self.kind in _POLICIES
        self.ranges = find_dims(self.module, make, buckets[-1]) if has_ranges else {}
        if self.is_gpu:
            self.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def first_calls(self) -> list[Callable[[], object]]:
        """Return the calls that compile, in order; `calls` are those of each size from then on."""
        first, kind = self.made[0], self.kind
        if not self.is_gpu and ("autotune" in kind or "freezing" in kind):
            torch._inductor.config.freezing = True  # else its GEMM template is no candidate
        function: Any = self.module
        settings = {"dynamic": False, **_SETTINGS.get(kind.removesuffix(LAYERS), {})}
        if settings["dynamic"] is False:  # an artifact for each size, where torch gives up at 8
            copies = 1 if self.is_gpu else len(list(self.module.modules()))  # frozen weights
            torch._dynamo.config.recompile_limit = copies * len(self.made) + 1
            torch._dynamo.config.accumulated_recompile_limit = 10_000
        if kind in _POLICIES:
            function = self.served = warmup.compile(
                self.module,
                dims=self.ranges,
                buckets=self.buckets or self.seqlens,
                **_POLICIES[kind],
                independent=("seqlen",),
                table=self.table,
                freezing=True,
            )
        elif kind.endswith(LAYERS):
            for layer in self.module.get_submodule(self.layers).children():
                layer.compile(**settings)
        elif kind != "eager":
            function = torch.compile(self.module, **settings)
        self.calls: list[Callable[[], object]] = [
            partial(function, *made.args, **made.kwargs) for made in self.made
        ]
        if self.served is not None:
            warm = partial(self.served.warm, *first.args, **first.kwargs)
            return [warm, *self.calls * (_GRAPH_CALLS if kind.endswith("graphs") else 1)]
        return [partial(function, self._marked()), *self.calls] if self.ranges else self.calls

    def _marked(self) -> torch.Tensor:
        """Return the first request, of the smallest size or the largest, with its dim marked."""
        by_size = dict(zip(self.seqlens, self.made, strict=True))
        size = max(by_size) if self.kind.endswith("largest") else min(set(by_size) - {1})
        marked: torch.Tensor = by_size[size].args[0].detach()
        (dim,) = next(iter(self.ranges.values()))
        torch._dynamo.mark_dynamic(marked, dim)
        return marked

    def _facts(self, by_bucket: Sequence[float]) -> Answer:
        """Return what dynamo, inductor and the device say of the start."""
        utils = torch._dynamo.utils
        compile_s = sum(utils.compilation_time_metrics.get("_compile.compile_inner", ()))
        return {
            "start": self.kind,
            "seconds_by_bucket": by_bucket,
            "compile_seconds": round(compile_s, 3),
            "first_call_seconds": round(sum(by_bucket) - compile_s, 3),
            "kernels": utils.counters["inductor"]["async_compile_cache_miss"],
            "graphs_from_cache": utils.counters["inductor"]["fxgraph_cache_hit"],
            "threads": torch._inductor.async_compile.get_compile_threads(),
            "weight_bytes": sum(p.numel() * p.itemsize for p in self.module.parameters()),
            "resident_bytes": resident_bytes(),
            "peak_bytes": torch.cuda.max_memory_allocated() if self.is_gpu else None,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.is_gpu else "cpu",
        }

    def end(self) -> Answer:
        """Stop counting and close the table; return what the table and the buckets did."""
        answer: Answer = {}
        if self.served is not None:
            report = self.served.report()
            answer |= {"recompiles": report.recompiles, "outside": dict(report.outside)}
        if handle := self.handle or getattr(self.served, "handle", None):
            report, bundle = handle.report(), handle.bundle
            handle.close()
            answer |= {"hits": sum(report.hits.values()), "misses": sum(report.misses.values())}
            answer |= {"from_cache": report.from_cache, "digest": report.digest}
            if bundle is not None:
                answer["bundle_refused"] = bundle.refused
                answer["kernels_compiled"] = len(bundle.compiled_besides())
        self._open.close()
        saves = self.kind.removesuffix("-warm") == "max-autotune" and self.is_gpu
        if saves and self.artifacts and not Path(self.artifacts).exists():
            saved = torch.compiler.save_cache_artifacts()
            answer["mega_bytes"] = Path(self.artifacts).write_bytes(saved[0] if saved else b"")
        return answer | {"process_seconds": round(time.monotonic() - self.spawned, 3)}


def start(**case: Any) -> Answer:
    """Start a server and end it."""
    server = Server(**case)
    return {**server.start(), **server.end()}


def pack(**case: Any) -> Answer:
    """Start a server, and write what it compiled as the bundle beside its table."""
    from warmup.inductor.caches import read_caches
    from warmup.serving.bundle import pack as write_bundle

    begun, table = time.monotonic(), Path(case["table"])
    server = Server(**case)
    server.start()
    runtime, files = connect().runtime(case["device"]), read_caches(server.on, graphs=True)
    server.end()
    return {"bundle": str(write_bundle(table, digest_of(read(table)), runtime, files, begun))}


def machine(device: str, **_spawned: float) -> Answer:
    """Return the facts of this machine and its runtime."""
    here = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
    return asdict(connect().runtime(device)) | here


def _recorded(call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of *call*, recorded in a CUDA graph and replayed once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph.replay


def _watch_workers() -> list[float]:
    """Return a list that gets the time at which inductor's workers are ready."""
    from torch._inductor.async_compile import AsyncCompile

    ready: list[float] = []
    if (workers := AsyncCompile._ready_future) is not None:
        workers.add_done_callback(lambda _: ready.append(time.monotonic()))
    return ready


def resident_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    mix = MixServer(Server)
    handlers = (start, pack, machine, mix.start_mix, mix.serve_mix, mix.end_mix)
    with torch.no_grad():
        if sys.argv[1].isdigit():
            serve({handler.__name__: handler for handler in handlers})
        else:
            recorded = Server(spawned=_BEGUN, **json.loads(sys.argv[1]))
            recorded.load()
            for call in recorded.first_calls():
                call()
