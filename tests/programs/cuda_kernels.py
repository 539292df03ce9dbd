"""Load generated kernels for the stated H100 under tables; print what was compiled and timed.

    echo '{"scenario": "answered"}' | python cuda_kernels.py

The kernels are inductor's own and Triton compiles them. Each scenario has empty caches; its name
and what it shows stand at its function. ``build``, the first, is that of the kernels.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
import torch
from h100 import Case
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.utils import fresh_cache

from warmup.core.rows import CandidateSource, Family, Winner, search_to_json
from warmup.core.trial import Tuned
from warmup.inductor.launch import hooks as launch_search

Shapes = Mapping[str, tuple[tuple[int, ...], ...]]
SHAPES: Shapes = {
    "transpose": ((512, 768), (768, 512)),
    "add": ((1024, 1024), (1024, 1024)),
    "norm": ((512, 8192), (8192,)),
}
REFUSED: set[str] = set()


def state_time(named: Mapping[str, int]) -> float:
    """Return the stated microseconds of a config: never best for the first that is offered."""
    best = {"XBLOCK": 32, "YBLOCK": 256, "R0_BLOCK": 2048}
    steps = [abs(math.log2(named[name] / best[name])) for name in best if name in named]
    return round(10 + 2 * sum(steps) + named["num_warps"] / 10, 3)


WORK = fake_gpu.pretend_launches(state_time, REFUSED.__contains__)


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    source: str

    def load(self) -> Any:
        """Return the kernel, made ready as the code that inductor generates does it."""
        with config.patch({"compile_threads": 1}):
            return AsyncCompile().triton(self.name, self.source, device_str="cuda")


Kernels = dict[str, Kernel]
Rows = dict[str, Winner]


# -- inductor's kernels ------------------------------------------------------------------------


def transpose(x: Any, y: Any) -> Any:
    return x.t() + y


def add(x: Any, y: Any) -> Any:
    return torch.relu(x) + y


def norm(x: Any, w: Any) -> Any:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(x.dtype) * w


def generate(
    device: int = 0, *, shapes: Shapes = SHAPES, backwards: bool = False, **options: Any
) -> Kernels:
    """Return the kernels of one graph, by what they do; *backwards* numbers them otherwise."""
    parts = [part for part in (transpose, add, norm) if part.__name__ in shapes]
    if backwards:
        parts.reverse()

    def compute(*inputs: Any) -> list[Any]:
        pairs = zip(inputs[::2], inputs[1::2], strict=True)
        return [part(*pair) for part, pair in zip(parts, pairs, strict=True)]

    mode = h100.fakes()
    with mode:
        sizes = [size for part in parts for size in shapes[part.__name__]]
        inputs = [h100.empty(*size, device=f"cuda:{device}") for size in sizes]
    code = h100.generate(h100.trace(compute, inputs, mode), inputs, mode, **options)
    return {_part_of(source): Kernel(name, source) for name, source in h100.kernels_in(code)}


def _part_of(source: str) -> str:
    if "r0_numel" in source:
        return "norm"
    return "transpose" if "ynumel" in source else "add"


# -- serving -----------------------------------------------------------------------------------


@contextlib.contextmanager
def empty_folder() -> Iterator[str]:
    """Load inside with empty caches, except Triton's own: compiling again would only take time."""
    kept = os.environ["TRITON_CACHE_DIR"]
    with fresh_cache():
        os.environ["TRITON_CACHE_DIR"] = kept
        yield cache_dir()


def watch(
    action: Callable[[], Any],
    rows: Rows | None,
    mode: str = "strict",
    *,
    tag: str = "table",
    searched: bool = False,
    on_tuned: Callable[[Tuned], None] | None = None,
) -> dict[str, Any]:
    """Do *action* while a table of *rows* is installed (none if None); return what came of it."""
    WORK.clear()
    result: dict[str, Any] = {"error": None, "events": []}
    if rows is None:
        action()
    else:
        tuner = h100.StatedTuner(lambda winner: state_time(dict(winner.kwargs)), WORK.timed)
        searches = frozenset({"launch"} if searched else ())
        words: dict[str, Any] = {"on_tuned": on_tuned, "searches": searches}
        _, result = h100.serve(action, rows, mode, tuner, tag=tag, **words)
    return {
        **result,
        "compiled": list(WORK.compiled),
        "timed": dict(WORK.timed),
        "launched": list(WORK.launched),
    }


def start(kernels: Kernels, *names: str) -> Callable[[], None]:
    """Return the start of a server: load each kernel, then call it twice."""

    def load_and_call() -> None:
        for name in names or kernels:
            call(kernels[name].load())

    return load_and_call


def call(kernel: Any) -> None:
    for _ in range(2):
        kernel.run(stream=0)


def build(kernels: Kernels, found: list[Tuned]) -> dict[str, Any]:
    with empty_folder() as folder:
        done = watch(start(kernels), {}, "tune", on_tuned=found.append)
    return {
        **done,
        "folder": folder,
        "names": {part: kernel.name for part, kernel in kernels.items()},
        "rows": [
            {
                "key": tuned.key,
                "winner": str(tuned.row.winner),
                "time_us": tuned.row.evidence.time_us,
                "library_us": tuned.row.evidence.library_us,
                "tried": tuned.row.evidence.tried,
                "searched": None if tuned.searched is None else search_to_json(tuned.searched),
                "timings": {str(timing.winner): timing.time_us for timing in tuned.timings},
            }
            for tuned in found
        ],
    }


# -- scenarios: what each returns is by name in the printed JSON -------------------------------


class Scenarios:
    """Everything that can be asked of the program; one method, one scenario."""

    def __init__(self) -> None:
        self.kernels = generate()
        tuned: list[Tuned] = []
        self.built = build(self.kernels, tuned)
        self.rows = {one.key: one.row.winner for one in tuned}
        # Where hooks raise, as some test wants it, there are no rows.
        self.key = next((key for key in self.rows if " y=" in key), "")
        self.row: Any = self.rows.get(self.key)

    def build(self) -> Any:
        return self.built

    def elsewhere(self) -> Any:
        """The same kernels, numbered otherwise, are built for another device without a search."""
        set_bounds(0, 0)
        try:
            return build(generate(1, backwards=True), [])
        finally:
            set_bounds(2, 4)

    def changed(self, **changes: Any) -> Rows:
        """Return a row for the transposing kernel with other kwargs; None drops one."""
        kwargs = {**dict(self.row.kwargs), **changes}
        kept = {name: value for name, value in sorted(kwargs.items()) if value is not None}
        return {self.key: Winner(Family.LAUNCH, self.row.uid, tuple(kept.items()))}

    def answered(self) -> Any:
        with empty_folder():
            return watch(start(self.kernels), self.rows)

    def unanswered(self) -> Any:
        with empty_folder():
            fallback = watch(start(self.kernels), {}, "fallback")
        with empty_folder():
            return {"fallback": fallback, "strict": watch(start(self.kernels), {}, "strict")}

    def chosen(self) -> Any:
        changes: dict[str, dict[str, Any]] = {
            "descent": {"XBLOCK": 32, "YBLOCK": 512, "num_warps": 2},
            "stages": {"num_stages": 3},
            "beyond the bound": {"YBLOCK": 2048},
            "no power of two": {"XBLOCK": 48},
            "too many warps": {"num_warps": 64},
            "larger than a tensor": {"XBLOCK": 4096, "YBLOCK": 1024},
            "another argument": {"ZBLOCK": 4},
            "an argument less": {"YBLOCK": None},
        }
        results = {}
        for label, change in changes.items():
            with empty_folder():
                rows = self.changed(**change)
                results[label] = watch(start(self.kernels, "transpose"), rows, "fallback")
        return results

    def refused(self) -> Any:
        """Configs that compile and do not load: the row's, and without a row the first one."""
        offered = self.offered()
        own = ",".join(f"{name}={value}" for name, value in self.row.kwargs)
        transpose = start(self.kernels, "transpose")
        results: dict[str, Any] = {"offered": offered}
        for label, config_refused, rows in (("row", own, self.rows), ("first", offered[0], {})):
            REFUSED.add(config_refused)
            with empty_folder():
                results[label] = watch(transpose, rows, "fallback")
            with empty_folder(), pool_of_one([]):
                load = functools.partial(self._load_pooled, ["transpose"])
                results[f"{label} in a pool"] = watch(load, rows, "fallback")
            REFUSED.clear()
        return results

    def offered(self) -> list[str]:
        """Return the configs that inductor offers for the transposing kernel."""
        with empty_folder():
            return list(watch(self.kernels["transpose"].load, None)["compiled"])

    def replaced(self) -> Any:
        """Two tables and none, one after the other, over one kernel in memory."""
        one, other = self.changed(), self.changed(XBLOCK=64, YBLOCK=64)
        transpose = start(self.kernels, "transpose")
        with empty_folder():
            return {
                "one": watch(transpose, one, tag="one"),
                "other": watch(transpose, other, tag="other"),
                "empty": watch(transpose, {}, "fallback", tag="empty"),
                "tune": watch(transpose, {}, "tune", tag="tune"),
                "none": watch(transpose, None),
            }

    def earlier(self) -> Any:
        results = {}
        for label, rows, mode in (
            ("answered", self.changed(), "strict"),
            ("unanswered", {}, "fallback"),
            ("offered", self.changed(XBLOCK=64, YBLOCK=64, num_warps=8), "strict"),
            ("impossible", self.changed(XBLOCK=48), "fallback"),
            ("strict", {}, "strict"),
        ):
            with empty_folder():
                kernel = self.kernels["transpose"].load()
                results[label] = watch(functools.partial(call, kernel), rows, mode)
        return results

    def descending(self) -> Any:
        """A kernel written under coordinate descent: loaded before a table, under it and after."""
        kernels = generate(coordinate_descent_tuning=True)
        transpose = start(kernels, "transpose")
        with empty_folder():
            kernel = kernels["transpose"].load()
            during = watch(functools.partial(call, kernel), {}, "fallback")
            after = watch(transpose, None)
        with empty_folder():
            return {"during": during, "after": after, "fresh": watch(transpose, None)}

    def single(self) -> Any:
        """A kernel for which inductor lists one config, under tables that have its row or not."""
        kernels = generate(shapes={"norm": ((2048, 768), (768,))})
        found: list[Tuned] = []
        results = {"built": build(kernels, found)}
        rows = {tuned.key: tuned.row.winner for tuned in found}
        for label, known, mode, searched in (
            ("answered", rows, "strict", True),
            ("answered by an older table", rows, "strict", False),
            ("no row", {}, "fallback", True),
            ("no row, strict", {}, "strict", True),
            ("no row in an older table", {}, "strict", False),
        ):
            with empty_folder():
                results[label] = watch(start(kernels), known, mode, searched=searched)
        return results

    def pooled(self) -> Any:
        """Kernels that a compile worker makes: what it is told and compiles."""
        results = {}
        for label, rows, names in (
            ("answered", self.rows, list(self.kernels)),
            ("unanswered", {}, ["transpose"]),
            ("more than blocks", self.changed(waves_per_eu=2), ["transpose"]),
            ("descent", self.changed(XBLOCK=32, YBLOCK=512), ["transpose"]),
        ):
            told: list[dict[str, Any]] = []
            with empty_folder(), pool_of_one(told):
                load = functools.partial(self._load_pooled, names)
                results[label] = watch(load, rows, "fallback")
            results[label]["told"] = told
        return results

    def starting(self) -> Any:
        """A kernel that is loaded while workers start, as it is and as that of a template."""
        kernel, results = self.kernels["transpose"], {}
        as_template = re.sub(
            r"@triton_heuristics[.]\w+", "@triton_heuristics.template", kernel.source
        )
        for label, source in (("pointwise", kernel.source), ("template", as_template)):
            sent: list[str] = []

            class Starting:
                def submit(self, _task: Any, *args: Any, sent: list[str] = sent) -> Future[Any]:
                    sent += [load.args[0] for load in args[:1]]  # none asks whether it is ready
                    return Future()

            def load(source: str = source) -> None:
                AsyncCompile().triton(kernel.name, source, device_str="cuda")  # type: ignore[no-untyped-call]

            with empty_folder(), pool_of(Starting), config.patch({"compile_threads": 2}):
                results[label] = {**watch(load, self.rows), "sent": sent}
        return results

    def _load_pooled(self, names: Sequence[str]) -> None:
        with config.patch({"compile_threads": 2}):
            for name in names:
                kernel = self.kernels[name]
                compiler: Any = AsyncCompile()
                call(compiler.triton(kernel.name, kernel.source, device_str="cuda").result())

    def cached(self) -> Any:
        """Kernels that inductor's cache of tuned configs had reduced to another config."""
        transpose = start(self.kernels, "transpose")
        rows = self.changed(XBLOCK=64, YBLOCK=64)
        results: dict[str, Any] = {}
        with empty_folder():
            results["tuned"] = watch(transpose, None)
            PyCodeCache.cache_clear()
            results["reduced"] = watch(self.kernels["transpose"].load, None)
            results["row"] = watch(transpose, rows)
        with empty_folder():
            results["built"] = watch(transpose, {}, "tune", tag="same")["launched"][0]
            PyCodeCache.cache_clear()
            results["no row"] = watch(transpose, {}, "fallback", tag="same")
        return results


@contextlib.contextmanager
def pool_of_one(told: list[dict[str, Any]]) -> Iterator[None]:
    """Let this process be the compile worker; what it is told and compiles goes to *told*."""

    # What a worker returns is pickled, and it leaves no kernel in this process's memory.
    class Pool:
        def submit(self, task: Callable[..., Any], *args: Any) -> Future[Any]:
            done: Future[Any] = Future()
            if not args:  # whether the pool is ready
                done.set_result(task())
                return done
            before = len(WORK.compiled)
            try:
                done.set_result(pickle.loads(pickle.dumps(task(*args))))  # noqa: S301  our own
            except Exception as error:  # noqa: BLE001  what a worker raises reaches the caller
                done.set_exception(error)
            seeds = args[-1].get("autotune_lookup_table", {})
            told.append({"seeds": list(seeds.values()), "compiled": WORK.compiled[before:]})
            del WORK.compiled[before:]
            PyCodeCache.cache_clear()
            return done

    with pool_of(Pool):
        yield


@contextlib.contextmanager
def pool_of(make: Callable[[], Any]) -> Iterator[None]:
    tool: Any = AsyncCompile
    found = vars(tool)["process_pool"], tool._ready_future
    tool.process_pool, tool._ready_future = staticmethod(make), None
    try:
        yield
    finally:
        tool.process_pool, tool._ready_future = found


def set_bounds(grid: int, descent: int) -> None:
    """Bound what a search adds; it compiles what it tries."""
    bounds = {CandidateSource.GRID: grid, CandidateSource.DESCENT: descent}
    launch_search.MOST_CONFIGS = bounds  # type: ignore[misc]


@functools.cache
def scenarios() -> Scenarios:
    set_bounds(2, 4)
    return Scenarios()


def answer(case: Case) -> Any:
    return getattr(scenarios(), case["scenario"])()


if __name__ == "__main__":
    h100.answer_each(answer)
