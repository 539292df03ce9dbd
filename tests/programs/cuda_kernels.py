"""Load generated kernels for the stated H100 under tables; print what was compiled and timed.

    python cuda_kernels.py '{"device": 1, "backwards": true, "scenarios": []}'

The kernels are inductor's own and Triton compiles them. Without ``scenarios`` only the build runs.
Each scenario has empty caches; its name and what it shows stand at its function.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_gpu
import torch

fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after the device is pretended
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.codecache import PyCodeCache  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.runtime.runtime_utils import cache_dir  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import warmup_error_in  # noqa: E402
from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.method import CandidateSource, search_to_json  # noqa: E402
from warmup.core.rows import Evidence, Family, Row, Winner  # noqa: E402
from warmup.core.trial import Tuned  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.caches import empty_caches, kept_kernels  # noqa: E402
from warmup.inductor.launch import hooks as launch_search  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)
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
    """One kernel as inductor wrote it."""

    name: str
    source: str

    def load(self) -> Any:
        """Return the kernel, made ready as the code that inductor generates does it."""
        with config.patch({"compile_threads": 1}):
            return AsyncCompile().triton(self.name, self.source, device_str="cuda")


Kernels = dict[str, Kernel]
Rows = dict[str, Winner]


# -- inductor's kernels ------------------------------------------------------------------------


def generate(
    device: int, *, shapes: Shapes = SHAPES, backwards: bool = False, **options: Any
) -> Kernels:
    """Return the kernels of one graph, by what they do; *backwards* numbers them otherwise."""

    def transpose(x: Any, y: Any) -> Any:
        return x.t() + y

    def add(x: Any, y: Any) -> Any:
        return torch.relu(x) + y

    def norm(x: Any, w: Any) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * w

    parts: list[tuple[str, Callable[..., Any]]] = [
        ("transpose", transpose),
        ("add", add),
        ("norm", norm),
    ]
    parts = [part for part in parts if part[0] in shapes]
    if backwards:
        parts.reverse()

    def compute(*inputs: Any) -> list[Any]:
        pairs = zip(inputs[::2], inputs[1::2], strict=True)
        return [part(*pair) for (_, part), pair in zip(parts, pairs, strict=True)]

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    with mode:
        inputs = [
            torch.empty(shape, dtype=torch.bfloat16, device=f"cuda:{device}")
            for name, _ in parts
            for shape in shapes[name]
        ]
        graph = make_fx(compute, decomposition_table=select_decomp_table())(*inputs)
    with config.patch({"fx_graph_cache": False, "compile_threads": 1, **options}):
        code = fake_gpu.generate(graph, inputs, mode, env)
    return {_part_of(source): Kernel(name, source) for name, source in fake_gpu.kernels_in(code)}


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
    events: list[Event] = []
    result: dict[str, Any] = {"error": None}
    with contextlib.ExitStack() as stack:
        if rows is not None:
            tuner = fake_gpu.StatedTuner(lambda winner: state_time(dict(winner.kwargs)), WORK.timed)
            lookup = Lookup(
                {key: Row(winner, EVIDENCE) for key, winner in rows.items()},
                emitter=Emitter([events.append]),
                **fake_gpu.answering(mode, tuner),
                on_tuned=on_tuned,
                searches=frozenset({"launch"} if searched else ()),
            )
            stack.callback(connect().attach(lookup, {}, tag).detach)
        try:
            action()
        except Exception as error:  # noqa: BLE001  whatever it is, a test says what it should be
            own = warmup_error_in(error)
            result["error"] = f"{type(own or error).__name__}: {own or error}"
    return {
        **result,
        "compiled": list(WORK.compiled),
        "timed": dict(WORK.timed),
        "launched": list(WORK.launched),
        "events": [{"name": event.name, **event.fields} for event in events],
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

    def __init__(self, kernels: Kernels, rows: Rows) -> None:
        self.kernels = kernels
        self.rows = rows
        self.key = next((key for key in rows if " y=" in key), "")
        self.row: Any = rows.get(self.key)

    def changed(self, **changes: Any) -> Rows:
        """Return a row for the transposing kernel with other kwargs; None drops one."""
        kwargs = {**dict(self.row.kwargs), **changes}
        kept = {name: value for name, value in sorted(kwargs.items()) if value is not None}
        return {self.key: Winner(Family.LAUNCH, self.row.uid, tuple(kept.items()))}

    def answered(self) -> Any:
        """Every kernel has a row."""
        with empty_folder():
            return watch(start(self.kernels), self.rows)

    def unanswered(self) -> Any:
        """No kernel has a row."""
        with empty_folder():
            fallback = watch(start(self.kernels), {}, "fallback")
        with empty_folder():
            return {"fallback": fallback, "strict": watch(start(self.kernels), {}, "strict")}

    def chosen(self) -> Any:
        """Rows that inductor did not offer."""
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
                "again": watch(transpose, one, tag="one"),
                "tune": watch(transpose, {}, "tune", tag="tune"),
                "none": watch(transpose, None),
            }

    def earlier(self) -> Any:
        """Kernels that were loaded before a table was installed."""
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
        """Kernels written under coordinate descent: loaded before a table, and in a build."""
        kernels = generate(0, coordinate_descent_tuning=True)
        transpose = start(kernels, "transpose")
        found: list[Tuned] = []
        with empty_folder():
            kernel = kernels["transpose"].load()
            during = watch(functools.partial(call, kernel), {}, "fallback")
            after = watch(transpose, None)
        with empty_folder():
            fresh = watch(transpose, None)
        with empty_folder():
            built = watch(transpose, {}, "tune", on_tuned=found.append)
        rows = {tuned.key: tuned.row.winner for tuned in found}
        with empty_folder():
            kernel = kernels["transpose"].load()
            answered = watch(functools.partial(call, kernel), self.rows)
        return {
            "during": during,
            "after": after,
            "fresh": fresh,
            "built": built,
            "row": str(rows.get(self.key)),
            "answered": answered,
        }

    def single(self) -> Any:
        """A kernel for which inductor lists one config, under tables that have its row or not."""
        kernels = generate(0, shapes={"norm": ((2048, 768), (768,))})
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

    def kept(self) -> Any:
        """A kernel that is compiled twice from empty caches, with Triton's kernels kept or not."""
        folder, results = os.environ["TRITON_CACHE_DIR"], {}
        transpose = start(self.kernels, "transpose")
        for label, context in (("kept", kept_kernels), ("not kept", contextlib.nullcontext)):
            rounds = []
            with context():
                for _ in range(2):
                    with empty_caches():
                        triton = Path(os.environ["TRITON_CACHE_DIR"])
                        before = [*triton.rglob("*.cubin")]
                        code = [*Path(cache_dir()).iterdir()]
                        watch(transpose, self.rows)
                        new = {*triton.rglob("*.cubin")}.difference(before)
                        rounds.append({"before": len(before), "new": len(new), "code": len(code)})
            results[label] = {"rounds": rounds, "is_left": triton.exists()}
        results["is_restored"] = os.environ["TRITON_CACHE_DIR"] == folder
        return results

    def pooled(self) -> Any:
        """Kernels that a compile worker makes: what it is told and compiles."""
        results = {}
        for label, rows, names in (
            ("answered", self.rows, list(self.kernels)),
            ("unanswered", {}, ["transpose"]),
            ("more than blocks", self.changed(waves_per_eu=2), ["transpose"]),
            ("an argument less", self.changed(YBLOCK=None), ["transpose"]),
            ("descent", self.changed(XBLOCK=32, YBLOCK=512), ["transpose"]),
        ):
            told: list[dict[str, Any]] = []
            with empty_folder(), pool_of_one(told):
                load = functools.partial(self._load_pooled, names)
                results[label] = watch(load, rows, "fallback")
            results[label]["told"] = told
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
            watch(transpose, None)
            results["in memory"] = watch(transpose, {}, "fallback")
        with empty_folder():
            results["built"] = watch(transpose, {}, "tune", tag="same")["launched"][0]
            PyCodeCache.cache_clear()
            results["same tag"] = watch(transpose, rows, tag="same")
            PyCodeCache.cache_clear()
            results["no row"] = watch(transpose, {}, "fallback", tag="same")
        return results


@contextlib.contextmanager
def pool_of_one(told: list[dict[str, Any]]) -> Iterator[None]:
    """Let this process be the compile worker; what it is told and compiles goes to *told*.

    What a worker returns is pickled, and it leaves no kernel in this process's memory.
    """

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

    tool: Any = AsyncCompile
    found = vars(tool)["process_pool"], tool._ready_future
    tool.process_pool, tool._ready_future = staticmethod(Pool), None
    try:
        yield
    finally:
        tool.process_pool, tool._ready_future = found


def main() -> None:
    case = {
        "device": 0,
        "backwards": False,
        "scenarios": [],
        "grid": 2,
        "descent": 4,
        **json.loads(sys.argv[1]),
    }
    launch_search.MOST_CONFIGS = {  # a search compiles what it tries
        CandidateSource.GRID: case["grid"],
        CandidateSource.DESCENT: case["descent"],
    }
    kernels = generate(case["device"], backwards=case["backwards"])
    found: list[Tuned] = []
    result: dict[str, Any] = {"build": build(kernels, found)}
    rows = {tuned.key: tuned.row.winner for tuned in found}
    for name in case["scenarios"]:
        result[name] = getattr(Scenarios(kernels, rows), name)()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
