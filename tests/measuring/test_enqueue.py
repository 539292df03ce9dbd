"""The host's times of candidates: whose are taken, of how many calls, and where they stand."""

from __future__ import annotations

import torch

from warmup.core.method import Launch, Method
from warmup.core.rows import Family, Scope, Winner
from warmup.core.trial import Outcome, Samples
from warmup.measuring.selection import make_fused_row, make_row
from warmup.measuring.trial import CandidateRun, Screening

LIBRARY = Winner(Family.EXTERN, "aten::addmm")
GPU, CPU = torch.device("cuda"), torch.device("cpu")
TIMES = {"triton::mm": (10.0, 11.0), "triton::tma": (30.0, 31.0), "aten::mm": (40.0,)}


def candidate(uid: str, block: int) -> Winner:
    return Winner(Family.TEMPLATE, uid, (("BLOCK_M", block),), "0123abcd")


def outcome(winner: Winner, time_us: float, host_us: float | None = None) -> Outcome:
    host = None if host_us is None else Samples((host_us,) * 3)
    return Outcome(winner=winner, samples=Samples((time_us,) * 12), host=host)


def finalists(device: torch.device, launch: Launch) -> list[str]:
    """Return the finalists of made-up times, on *device*, which is not touched."""
    runs = [CandidateRun(LIBRARY)]
    runs[0].outcome = outcome(LIBRARY, 50.0)
    for uid, times in TIMES.items():
        for block, time_us in enumerate(times):
            runs.append(CandidateRun(candidate(uid, block)))
            runs[-1].outcome = outcome(runs[-1].winner, time_us)
    screening = Screening(runs, LIBRARY, device, Method(launch=launch))
    return [f"{run.winner.uid} {run.time_us:.0f}" for run in screening.finalists()]


def test_finalists_are_the_fastest_the_host_may_decide_among() -> None:
    """However much slower it is on the device, since the host may enqueue it faster."""
    found = finalists(GPU, Launch.EAGER)
    assert found[:2] == ["triton::mm 10", "triton::mm 11"]
    assert sorted(found[2:]) == ["aten::addmm 50", "aten::mm 40", "triton::tma 30"]
    # Elsewhere finalists are near the fastest.
    for device, launch in ((GPU, Launch.CUDAGRAPH), (CPU, Launch.EAGER)):
        assert finalists(device, launch) == ["triton::mm 10", "triton::mm 11", "aten::addmm 50"]


def test_a_row_has_the_hosts_times_of_winner_and_library() -> None:
    winner = candidate("triton::mm", 16)
    alone = [outcome(LIBRARY, 50.0, 25.0), outcome(winner, 10.0, 7.0)]
    bare = make_row("addmm m=16", alone, LIBRARY, Method())
    assert bare is not None
    assert (bare.row.evidence.host_us, bare.row.evidence.library_host_us) == (7.0, 25.0)
    region = [outcome(LIBRARY, 60.0, 80.0), outcome(winner, 20.0, 55.0)]
    fused = make_fused_row(bare, region, LIBRARY, Method())
    assert fused is not None
    assert fused.row.evidence.scope is Scope.FUSED
    assert (fused.row.evidence.host_us, fused.row.evidence.library_host_us) == (55.0, 80.0)
    assert {timing.winner: timing.host_us for timing in fused.deciding} == {
        LIBRARY: 80.0,
        winner: 55.0,
    }
