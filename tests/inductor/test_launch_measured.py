"""A launch search from end to end on a CPU: real arguments, checks, times and rows, no compiler."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import config_from_dict

from warmup.core.method import L2, Method
from warmup.core.rows import Rejection, Tuned
from warmup.core.search import CandidateSource
from warmup.inductor.launch import search as launch_search
from warmup.inductor.launch.search import LaunchSearch
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
        """Write the sums."""
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


@pytest.fixture(scope="module")
def searched() -> tuple[Tuned, LaunchSearch]:
    """The result of a search in which one config is wrong, and one does not load."""
    kernel, out = make_kernel(), torch.zeros(64)
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0)) + 1

    def compile_configs(_kernel: Any, configs: Any) -> list[Any]:
        unloaded = {name: UNLOADED[name] for name in ("XBLOCK", "R0_BLOCK")}
        return [
            "OutOfResources: registers" if config.kwargs == unloaded else Launcher(config)
            for config in configs
        ]

    offered = [config_from_dict(dict(FIRST))]
    search = LaunchSearch(kernel, offered, (x, out, 64, 4096), {}, compile_configs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_search, "MOST_CONFIGS", {CandidateSource.DESCENT: 8})
        live = search.start()
        assert live is not None
        tuner = Tuner(torch.device("cpu"), Method(l2=L2.WARM), {"f32": 1e-3})
        tuned = tuner.measure_search(KEY, live)
    assert tuned is not None
    assert out.tolist() == [0.0] * 64  # the model's tensor
    return tuned, search


def test_a_planted_wrong_config_is_rejected(searched: tuple[Tuned, LaunchSearch]) -> None:
    """It is among the timings with its reason, without a time, and does not win."""
    tuned, _ = searched
    (wrong,) = (one for one in tuned.timings if dict(one.winner.kwargs) == WRONG)
    assert (wrong.rejection, wrong.time_us) == (Rejection.WRONG, None)
    assert "relative L2 error" in wrong.said
    assert tuned.row.winner != wrong.winner


def test_a_row_counts_what_was_tried_and_rejected(searched: tuple[Tuned, LaunchSearch]) -> None:
    """Rejections by reason, and the counts by source, are those of the candidates."""
    tuned, _ = searched
    evidence, counts = tuned.row.evidence, tuned.searched
    assert counts is not None
    assert evidence.tried == len(tuned.timings) == counts.tried
    assert dict(evidence.rejected)[Rejection.WRONG] >= 1
    assert dict(evidence.rejected)[Rejection.COMPILE] >= 1
    assert counts.listed == 1
    assert 5 <= dict(counts.added)[CandidateSource.DESCENT] <= 8  # all neighbours of the first


def test_a_row_has_its_control_and_band(searched: tuple[Tuned, LaunchSearch]) -> None:
    """The only listed config is the control, and configs tie within one per cent at least."""
    tuned, search = searched
    evidence = tuned.row.evidence
    assert evidence.library_us is not None
    assert evidence.band is not None
    assert evidence.band >= 0.01
    assert search.launcher_of(tuned.row.winner).config is not None
