"""`LaunchSearch`: which configs are tried for a kernel, with stated times and without compiling."""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("triton")

from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType, ReductionHint
from torch._inductor.runtime.triton_heuristics import config_from_dict

from warmup.core.rows import CandidateSource, SearchCounts, Winner
from warmup.inductor.launch import hooks as launch_search
from warmup.inductor.launch.hooks import LaunchSearch
from warmup.inductor.launch.kernels import kwargs_of, listed_by_inductor, refusal_reason, winner_of

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
    """Return what a search reads of a generated kernel."""
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

    search = LaunchSearch(kernel, offered_for(kernel), (), {}, compile_configs)
    live = search.start()
    assert live is not None
    times: dict[Winner, float] = {}
    calls = live.calls
    while calls:
        times |= {winner: time_of(dict(winner.kwargs)) for winner in calls}  # type: ignore[arg-type]
        calls = live.more(times)
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
