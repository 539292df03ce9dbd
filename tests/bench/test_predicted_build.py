"""`docs/benchmarks/predicted_build.py`: what it holds out, and how it judges builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "docs/benchmarks"
TIMINGS = BENCHMARKS / "results/timings/h100-predicted.jsonl.gz"
PROGRAM = """
import json, sys
from pathlib import Path
from predicted_build import judged, problems_without
from warmup.core.rows import Family, Winner
from warmup.prediction.features import library_among
from warmup.prediction.timing_lines import read_timings
from warmup.prediction.training import training_set

timed, models = read_timings([Path(sys.argv[1])]), ["bert-large", "llama-3-8b"]
training = training_set(timed)
held = {one.key: one for one in training.problems if one.source in models}
kept = problems_without(training, models)
wide = [one for one in timed if one.key in held]
winners = {
    "predicted": {one.key: library_among(one.key.split()[0], one.times_us) for one in wide},
    "default": {one.key: Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 1),)) for one in wide},
    "wide": {one.key: min(one.times_us, key=one.times_us.get) for one in wide},
}
print(json.dumps({
    "count": len(held),
    "sources": sorted({one.source for one in held.values()}),
    "shared": len({one.sizes for one in held.values()} & {one.sizes for one in kept}),
    "left": len(training.problems) - len(kept),
    "judged": judged(wide, winners),
}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the functions of the program say of the committed timings."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TIMINGS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_what_is_built_has_no_sizes_in_common_with_what_was_fitted_to(
    found: dict[str, Any],
) -> None:
    """All problems of the named models are built, and none of their sizes is fitted to."""
    assert found["sources"] == ["bert-large", "llama-3-8b"]
    assert found["shared"] == 0
    assert found["left"] >= found["count"] > 15


def test_winners_are_judged_by_the_times_of_the_wide_search(found: dict[str, Any]) -> None:
    """A build that took the library everywhere loses what the library does; no time is no loss."""
    for problem in found["judged"]:
        regrets = problem["regrets"]
        assert regrets["wide"] >= 1
        assert regrets["predicted"] == regrets["library"] >= 1
        assert regrets["default"] is None
