"""A launch search from end to end on a CPU: real arguments, checks, times and rows, no compiler."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import config_from_dict

from warmup.core.rows import L2, CandidateSource, Method, Rejection
from warmup.core.trial import Tuned
from warmup.inductor.launch import hooks as launch_search
from warmup.inductor.launch.hooks import LaunchSearch
from warmup.keys.kind import ProblemOfKey
from warmup.keys.question import SearchQuestion
from warmup.tuning.tuner import Tuner

KEY = "launch triton_red_fused x=64 r0_=4096 args=*f32,*f32 source=3f2a9c0d41b7e865"
WRONG = {"XBLOCK": 2, "R0_BLOCK": 1024, "num_warps": 4, "num_stages": 1}
UNLOADED = {"XBLOCK": 1, "R0_BLOCK": 2048, "num_warps": 8, "num_stages": 1}
FIRST = {"XBLOCK": 1, "R0_BLOCK": 1024, "num_warps": 4, "num_stages": 1}


@dataclasses.dataclass
class Launcher:
    """A loaded kernel that sums rows; the wrong config forgets half of each row."""

    config: Any
    n_spills: int = 0

    def __call__(self, x: Any, out: Any, _xnumel: int, _rnumel: int, *, stream: int) -> None:
        is_wrong = self.config.kwargs == {"XBLOCK": 2, "R0_BLOCK": 1024}
        torch.sum(x[:, : 2048 if is_wrong else 4096], 1, out=out)


def make_kernel() -> Any:
    meta = {"warp_size": 32, "max_threads_per_block": 1024}
    sizes = {"x": 64, "r0_": 4096}
    return types.SimpleNamespace(
        heuristic_type=HeuristicType.REDUCTION,
        size_hints=None,  # so that inductor's own lists cannot be asked for
        inductor_meta=meta,
        fn=types.SimpleNamespace(arg_names=["in_ptr0", "out_ptr0", "xnumel", "r0_numel", "XBLOCK"]),
        mutated_arg_names=[],
        reset_to_zero_arg_names=[],
        coordesc_tuner=CoordescTuner(name="sum", size_hints=sizes, inductor_meta=meta),
        get_device_interface=lambda: types.SimpleNamespace(
            get_raw_stream=lambda _device: 0, current_device=lambda: 0
        ),
    )


def make_tuner() -> Tuner:
    tuner = Tuner(torch.device("cpu"), Method(l2=L2.WARM), {"f32": 1e-3})
    tuner.watch.read = lambda: None  # the load of this machine decides nothing here
    return tuner


def measure(
    tuner: Tuner, key: str, limit_us: float = math.inf
) -> tuple[Tuned, LaunchSearch, list[Any]]:
    """Return the row of a searched kernel, its search, and the configs that were compiled."""
    kernel, out = make_kernel(), torch.zeros(64)
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0)) + 1
    compiled: list[Any] = []

    def compile_configs(_kernel: Any, configs: Any) -> list[Any]:
        compiled.extend(configs)
        unloaded = {name: UNLOADED[name] for name in ("XBLOCK", "R0_BLOCK")}
        return [
            "OutOfResources: registers" if config.kwargs == unloaded else Launcher(config)
            for config in configs
        ]

    offered = [config_from_dict(dict(FIRST))]
    search = LaunchSearch(kernel, offered, (x, out, 64, 4096), {}, compile_configs, limit_us)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_search, "MOST_CONFIGS", {CandidateSource.DESCENT: 8})
        live = search.start()
        assert live is not None
        tuned = tuner.measure(SearchQuestion(ProblemOfKey(key), live))
    assert tuned is not None
    assert out.tolist() == [0.0] * 64  # the model's tensor
    return tuned, search, compiled


@pytest.fixture(scope="module")
def tuner() -> Tuner:
    return make_tuner()


@pytest.fixture(scope="module")
def searched(tuner: Tuner) -> tuple[Tuned, LaunchSearch]:
    """The result of a search in which one config is wrong, and one does not load."""
    return measure(tuner, KEY)[:2]


def test_a_row_counts_what_was_tried_and_a_planted_wrong_config_is_rejected(
    searched: tuple[Tuned, LaunchSearch],
) -> None:
    """It is among the timings with its reason, without a time, and does not win.

    The only listed config is the control, and configs tie within one per cent at least.
    """
    tuned, search = searched
    (wrong,) = (one for one in tuned.timings if dict(one.winner.kwargs) == WRONG)
    assert (wrong.rejection, wrong.time_us) == (Rejection.WRONG, None)
    assert "relative L2 error" in wrong.said
    assert tuned.row.winner != wrong.winner
    evidence, counts = tuned.row.evidence, tuned.searched
    assert counts is not None
    assert evidence.tried == len(tuned.timings) == counts.tried
    assert min(dict(evidence.rejected)[each] for each in (Rejection.WRONG, Rejection.COMPILE)) >= 1
    assert counts.listed == 1
    assert 5 <= dict(counts.added)[CandidateSource.DESCENT] <= 8  # all neighbours of the first
    assert evidence.library_us is not None
    assert evidence.band is not None
    assert evidence.band >= 0.01
    assert search.launcher_of(tuned.row.winner).config is not None


def test_an_equal_kernel_of_another_name_is_not_timed_again(
    tuner: Tuner, searched: tuple[Tuned, LaunchSearch]
) -> None:
    """Its row has the evidence of the first; only its listed config and the winner are compiled.

    A kernel that is asked for again is timed again.
    """
    first, _ = searched
    tuned, search, compiled = measure(tuner, KEY.replace("red_fused", "red_fused_sum"))
    assert (tuned.row, tuned.searched) == (first.row, first.searched)
    assert search.launcher_of(tuned.row.winner) is not None
    wanted = {tuple(sorted(FIRST.items())), tuned.row.winner.kwargs}
    assert len(compiled) == len(wanted)
    tuned, _, compiled = measure(tuner, KEY)
    assert tuned.timings != first.timings
    assert len(compiled) > 2


def test_a_search_that_cannot_matter_ends_before_the_descent() -> None:
    """It has the listed config alone, and an equal kernel is searched to the end."""
    tuner = make_tuner()
    cut, _, compiled = measure(tuner, KEY, limit_us=0.0)
    assert cut.searched is not None
    assert (len(compiled), dict(cut.searched.added)) == (1, {})
    whole, _, _ = measure(tuner, KEY.replace("red_fused", "red_fused_sum"))
    assert whole.searched is not None
    assert CandidateSource.DESCENT in dict(whole.searched.added)
