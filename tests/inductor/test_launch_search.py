"""`LaunchSearch`: which configs are tried for a kernel, with stated times and without compiling."""

from __future__ import annotations

import copy
import itertools
import math
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType, ReductionHint
from torch._inductor.runtime.triton_heuristics import config_from_dict

from warmup.core.events import Emitter
from warmup.core.rows import CandidateSource, Method, SearchCounts, Winner
from warmup.inductor import listing
from warmup.inductor.launch import compiling
from warmup.inductor.launch import hooks as launch_search
from warmup.inductor.launch.hooks import LaunchConfigs, LaunchSearch
from warmup.inductor.launch.kernels import (
    fixed_config,
    kwargs_of,
    listed_by_inductor,
    problem_of,
    refusal_reason,
    winner_of,
)
from warmup.inductor.versions import version_for
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.tuning.tuner import Tuner

Times = Callable[[Mapping[str, int]], float]
H100 = {
    "type": "cuda",
    "index": 0,
    "multi_processor_count": 132,
    "cc": 90,
    "major": 9,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "warp_size": 32,
    "max_threads_per_block": 1024,
}
BLOCKS = {
    HeuristicType.POINTWISE: {1: ["XBLOCK"], 2: ["XBLOCK", "YBLOCK"]},
    HeuristicType.REDUCTION: {2: ["XBLOCK", "R0_BLOCK"]},
    HeuristicType.PERSISTENT_REDUCTION: {2: ["XBLOCK"]},
    HeuristicType.SPLIT_SCAN: {2: ["XBLOCK", "R0_BLOCK"]},
}


def make_kernel(kind: HeuristicType, hint: Any = ReductionHint.INNER, **sizes: int) -> Any:
    fields = {name: H100.get(name) for name in DeviceProperties._fields}
    device = DeviceProperties(**fields)
    meta = {"reduction_hint": hint, "warp_size": 32, "max_threads_per_block": 1024}
    return types.SimpleNamespace(
        heuristic_type=kind,
        size_hints=sizes,
        inductor_meta=meta,
        triton_meta={"device": 0, "signature": {}},
        device_props=device,
        fn=types.SimpleNamespace(arg_names=BLOCKS[kind][len(sizes)]),
        mutated_arg_names=[],
        coordesc_tuner=CoordescTuner(name="test", size_hints=sizes, inductor_meta=meta),
        get_device_interface=lambda: None,
    )


def offered_for(kernel: Any) -> tuple[Any, ...]:
    """Return the configs that inductor lists for *kernel* in default mode."""
    return listed_by_inductor(kernel, max_autotune=False) or (
        config_from_dict({"XBLOCK": 1, "R0_BLOCK": 1024, "num_warps": 8, "num_stages": 1}),
    )


def run_search(
    kernel: Any, compile_configs: Any, time_of: Times
) -> tuple[dict[Winner, float], Any]:
    """Return the times of all configs of a search, in the order in which it asked, and itself."""
    live = LaunchSearch(kernel, offered_for(kernel), (), {}, compile_configs).start()
    assert live is not None
    times: dict[Winner, float] = {}
    calls = live.calls
    while calls:
        times |= {winner: time_of(dict(winner.kwargs)) for winner in calls}
        calls = live.more(times)
    return times, live


def search_all(
    kernel: Any, time_of: Times, refuses: Callable[[Mapping[str, int]], bool] = lambda _: False
) -> tuple[dict[Winner, float], SearchCounts, Mapping[Winner, str]]:
    """Return the stated time of every config that was tried, the counts, and what did not load."""
    compiled: list[tuple[tuple[str, Any], ...]] = []

    def compile_configs(_kernel: Any, configs: Any) -> list[Any]:
        named = [kwargs_of(config) for config in configs]
        spelled = [tuple(sorted(one.items())) for one in named]
        assert not set(spelled) & set(compiled)
        assert len(set(spelled)) == len(spelled), "two descents may ask for one config"
        compiled.extend(spelled)
        launcher = types.SimpleNamespace(n_spills=0)
        return ["OutOfResources: shared memory" if refuses(one) else launcher for one in named]

    times, live = run_search(kernel, compile_configs, time_of)
    return times, live.counts(), live.uncompiled


def valley(**best: int) -> Times:
    """Return times that are least at *best* and grow with the steps from there."""

    def time_of(named: Mapping[str, int]) -> float:
        return 10 + sum(abs(math.log2(named[name] / best[name])) for name in best if name in named)

    return time_of


KERNELS = {
    "pointwise": make_kernel(HeuristicType.POINTWISE, x=1 << 20),
    "transpose": make_kernel(HeuristicType.POINTWISE, x=4096, y=4096),
    "persistent": make_kernel(HeuristicType.PERSISTENT_REDUCTION, x=16384, r0_=1024),
    "looped": make_kernel(HeuristicType.REDUCTION, x=2048, r0_=4096),
    "outer": make_kernel(HeuristicType.REDUCTION, ReductionHint.OUTER, x=4096, r0_=8192),
}


BESTS = (
    {"XBLOCK": 4, "YBLOCK": 128, "R0_BLOCK": 512, "num_warps": 1},
    {"XBLOCK": 512, "YBLOCK": 2, "R0_BLOCK": 8, "num_warps": 16},
)


def test_a_search_is_as_good_as_inductors_descent() -> None:
    """By the same times, nothing that inductor's own descent comes by is faster."""
    for (name, kernel), best in itertools.product(KERNELS.items(), BESTS):
        time_of = valley(**best)
        times, counts, _ = search_all(kernel, time_of)
        longer = listed_by_inductor(kernel, max_autotune=True)
        start = min(longer, key=lambda config, time=time_of: time(kwargs_of(config)))
        own = CoordescTuner(
            name="own", size_hints=kernel.size_hints, inductor_meta=kernel.inductor_meta
        )
        end = own.autotune(lambda config, time=time_of: time(kwargs_of(config)), start)
        assert winner_of(kernel, end) in times, (name, best)
        assert min(times.values()) <= time_of(kwargs_of(end)), (name, best)
        assert counts.left_out == 0, (name, best)


def test_every_config_can_be_forced_at_serving() -> None:
    """Whatever is tried stays within inductor's bounds for the code that it generated."""
    for kernel in KERNELS.values():
        times, _, _ = search_all(kernel, valley(XBLOCK=4096, YBLOCK=1024, R0_BLOCK=65536))
        offered = offered_for(kernel)
        assert all(refusal_reason(winner, offered) is None for winner in times), kernel


def test_with_fixed_reductions_a_config_depends_on_the_length_of_a_row_alone() -> None:
    """It is the only one that is tried, and serving can be forced to it; others are searched."""
    inner, outer = ReductionHint.INNER, ReductionHint.OUTER
    persistent, looped = HeuristicType.PERSISTENT_REDUCTION, HeuristicType.REDUCTION
    for kind, hint, length in itertools.product((persistent, looped), (inner, outer), (64, 4096)):
        found = set()
        for rows in (1, 16, 1 << 14):
            kernel = make_kernel(kind, hint, x=rows, r0_=length)
            offered = offered_for(kernel)
            compiled: list[Any] = []
            search = LaunchSearch(
                *(kernel, offered, (), {}, lambda _, configs, to=compiled: [to.append(configs)]),
                fixes_rows=True,
            )
            live = search.start()
            assert live is not None, (kind, hint, length, rows)
            assert (len(live.calls), live.more({live.listed[0]: 1.0})) == (1, {}), (kind, rows)
            assert refusal_reason(live.listed[0], offered) is None, (kind, hint, length, rows)
            found.add(live.listed[0])
        assert len(found) == 1, (kind, hint, length, found)
    kernel = KERNELS["pointwise"]
    assert fixed_config(kernel, offered_for(kernel)[0]) is None


def test_a_search_is_bounded() -> None:
    """A bound keeps configs of the grid and the descent out, counts them, and spares the lists."""
    for kernel in KERNELS.values():
        with pytest.MonkeyPatch.context() as monkeypatch:
            bounds = {CandidateSource.GRID: 3, CandidateSource.DESCENT: 2}
            monkeypatch.setattr(launch_search, "MOST_CONFIGS", bounds)
            times, counts, _ = search_all(
                kernel, valley(XBLOCK=2, YBLOCK=2, R0_BLOCK=2, num_warps=32)
            )
            added = dict(counts.added)
            assert (added[CandidateSource.GRID], added[CandidateSource.DESCENT]) == (3, 2), kernel
            assert counts.left_out > 0, kernel
            assert counts.tried == len(times), kernel
            longer = {
                winner_of(kernel, one) for one in listed_by_inductor(kernel, max_autotune=True)
            }
            assert longer <= times.keys(), kernel


def test_a_split_scan_keeps_the_least_block_of_its_workspace() -> None:
    """Smaller blocks would be more blocks than the workspace has room for."""
    kernel = make_kernel(HeuristicType.SPLIT_SCAN, x=16, r0_=1 << 20)
    times, _, _ = search_all(kernel, valley(R0_BLOCK=16, XBLOCK=1))
    blocks = {dict(winner.kwargs)["R0_BLOCK"] for winner in times}
    assert len(blocks) > 1
    assert min(int(one or 0) for one in blocks) == 256


def test_a_config_that_does_not_load_is_no_candidate() -> None:
    """It is rejected with the reason, and the descent goes on around it."""
    times, counts, failed = search_all(
        KERNELS["looped"],
        valley(XBLOCK=4, R0_BLOCK=2048, num_warps=4),
        refuses=lambda named: named["XBLOCK"] * named["R0_BLOCK"] > 4096,
    )
    assert failed
    assert set(failed.values()) == {"OutOfResources: shared memory"}
    assert not failed.keys() & times.keys()
    assert counts.tried == len(times) + len(failed)


class Pool:
    """Workers that compile nothing; like inductor's, it sends under the lock that it holds to end.

    ``sent`` are the kernel and config of each task, in order.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, tuple[tuple[str, Any], ...]]] = []
        self.under_way: list[Future[Any]] = []
        self.threads = ThreadPoolExecutor(1)
        self._lock = threading.Lock()

    def submit(self, _task: Any, name: str, _path: str, config: Any, _folders: Any) -> Future[Any]:
        assert self._lock.acquire(timeout=10), "the thread that ends a task sends another"
        self.sent.append((name, tuple(sorted(config.items()))))
        self.under_way.append(task := Future())
        self._lock.release()
        return task

    def settle(self) -> None:
        """Wait until the threads have sent what they were told to."""
        self.threads.submit(int).result(timeout=10)

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            with self._lock:
                self.under_way.pop(0).set_result(None)
            self.settle()


WORKERS = 8
BUSY = 6  # two are left for what a search asks for at once


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    found = Pool()
    for name, value in (("process_pool", found), ("pool", found.threads), ("use_process_pool", 1)):
        monkeypatch.setattr(AsyncCompile, name, lambda value=value: value)
    for module in (compiling, listing):
        monkeypatch.setattr(module, "get_compile_threads", lambda: WORKERS)
    monkeypatch.setattr(compiling, "_load", loaded)
    compiling.keep_configs()
    yield found
    compiling.forget_configs()
    while found.under_way:
        found.end()
    found.threads.shutdown()


def loaded(_kernel: Any, config: Any) -> Any:
    return types.SimpleNamespace(config=config, n_spills=0)


def generated(number: int, code: str = "", kind: str = "outer") -> Any:
    """Return a kernel with code of its own; the configs of default mode are loaded."""
    kernel = copy.copy(KERNELS[kind])
    names = copy.copy(kernel.fn)
    names.__name__, names.fn, names.src = f"triton_{number}", names, f"def it({code or number}):"
    kernel.fn, kernel.filename, kernel.configs = names, f"{number}.py", None
    kernel.launchers = [loaded(kernel, config) for config in offered_for(kernel)]
    kernel.compile_results = kernel.launchers
    return kernel


def first_of(kernel: Any) -> list[tuple[str, tuple[tuple[str, Any], ...]]]:
    """Return what a search compiles whatever the times are, by name and config."""
    search = LaunchSearch(kernel, offered_for(kernel), (), {}, compiling.compile_configs)
    named = [tuple(sorted(kwargs_of(one).items())) for one in search.first_configs()]
    known = [tuple(sorted(kwargs_of(one.config).items())) for one in kernel.launchers]
    return [(kernel.fn.__name__, one) for one in named if one not in known]


def hooks_of(*, measures: bool = True, times: bool = True, launch: bool = True) -> LaunchConfigs:
    lookup = Lookup(
        {},
        OnMiss.FALLBACK,
        Emitter([]),
        tuner=Tuner(torch.device("cpu"), Method(), {}) if measures else None,
        searches=frozenset({"launch"} if launch else ()),
        times_kernels=times,
    )
    return LaunchConfigs(version_for(torch.__version__), lookup)


def load(hooks: LaunchConfigs, *kernels: Any) -> None:
    for kernel in kernels:
        hooks._precompile(lambda _kernel: None, kernel)


def test_the_next_kernels_are_compiled_in_order_by_workers_that_would_be_idle(pool: Pool) -> None:
    """What a search asks for goes first, and a kernel that is searched makes room for a fourth."""
    kernels = [generated(number) for number in range(4)]
    load(hooks_of(), *kernels)
    pool.settle()
    first, second, third, fourth = map(first_of, kernels)
    assert len(first) > 2 * WORKERS
    assert pool.sent == first[:BUSY]
    pool.end(2)
    assert pool.sent == first[: BUSY + 2]
    pool.end()
    wanted = first[-5:]  # two workers are free for them, and the tasks that are sent wait for all
    configs = [config_from_dict(dict(config)) for _, config in [*wanted, first[0]]]
    likely = [config_from_dict(dict(config)) for _, config in third[-2:]]
    compiling.send_likely(kernels[0], configs, [])
    compiling.send_likely(kernels[2], [], likely)
    sent = [*first[: BUSY + 3], *wanted]
    assert pool.sent == sent
    pool.end(len(pool.under_way) - WORKERS + 2)
    assert pool.sent == [*sent, *third[-2:]]
    while pool.under_way:
        pool.end()
        assert len(pool.under_way) <= WORKERS
    assert pool.sent == [
        *(*sent, *third[-2:], *first[BUSY + 3 : -5]),
        *(*second, *third[:-2]),
    ]
    listing.backlog.drop(until=kernels[0].filename)
    pool.settle()
    pool.end(len(fourth))
    assert pool.sent[-len(fourth) :] == fourth
    assert len(pool.sent) == len(set(pool.sent))
    assert not pool.under_way


def test_what_waits_is_forgotten(pool: Pool) -> None:
    """When hooks are detached, and when a build waits for the workers before it measures."""
    for forget in (listing.wait_for_sent, compiling.forget_configs):
        compiling.keep_configs()
        load(hooks_of(), generated(len(pool.sent)), generated(len(pool.sent) + 1))
        pool.settle()
        assert len(pool.under_way) == BUSY
        sent = len(pool.sent)
        waiting = threading.Thread(target=forget)
        waiting.start()
        while pool.under_way:
            pool.end()
        waiting.join(timeout=10)
        assert len(pool.sent) == sent


def test_nothing_is_compiled_ahead_that_no_search_will_time(pool: Pool) -> None:
    on_cpu = generated(0)
    on_cpu.device_props = on_cpu.device_props._replace(type="cpu")
    load(hooks_of(), on_cpu)
    for words in ({"measures": False}, {"times": False}, {"launch": False}):
        load(hooks_of(**words), generated(0))
    with listing.listing():
        load(hooks_of(), generated(0))
    compiling.note_search(problem_of(generated(1, "searched")))
    load(hooks_of(), generated(2, "searched"))
    pool.settle()
    assert pool.sent == []
    load(hooks_of(), generated(3, "new"), generated(4, "new"))
    pool.settle()
    while pool.under_way:
        pool.end()
    assert {name for name, _ in pool.sent} == {"triton_3"}


@pytest.mark.parametrize("kind", KERNELS)
def test_a_search_times_the_same_configs_in_the_same_order_with_and_without_workers(
    pool: Pool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(kernel: Any) -> list[Winner]:
        return list(run_search(kernel, compiling.compile_configs, time_of)[0])

    time_of = valley(**BESTS[1])
    monkeypatch.setattr(compiling, "wait", lambda *_args, **_kw: pool.end(len(pool.under_way)))
    kernel, next_kernel = generated(0, kind=kind), generated(1, kind=kind)
    load(hooks_of(), kernel, next_kernel)
    found = timed(kernel)
    assert len(pool.sent) == len(set(pool.sent))
    assert {name for name, _ in pool.sent} == {"triton_0", "triton_1"}
    monkeypatch.setattr(AsyncCompile, "use_process_pool", lambda: False)
    assert found == timed(generated(2, kind=kind))
    assert "triton_2" not in dict(pool.sent)
