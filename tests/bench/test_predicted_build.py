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
import gzip, json, sys
from pathlib import Path
from predicted_build import judged, problems_without, times_of, write_problems
from warmup.prediction.timing_lines import read_timings
from warmup.prediction.training import training_set

timings, folder, models = Path(sys.argv[1]), Path(sys.argv[2]), ["bert-large", "llama-3-8b"]
training = training_set(read_timings([timings]))
count = write_problems(folder / "problems.json", training, models)
keys = {one["key"] for one in json.loads((folder / "problems.json").read_text())["problems"]}
held = [one for one in training.problems if one.key in keys]
kept = problems_without(training, models)

wide = {line["key"]: line for line in map(json.loads, gzip.open(timings)) if line["key"] in keys}
library = {key: {**line, "winner": line["candidates"][0]["choice"]} for key, line in wide.items()}
unknown = {key: {**line, "winner": "triton::mm(BLOCK_M=1)"} for key, line in wide.items()}
print(json.dumps({
    "count": count,
    "sources": sorted({one.source for one in held}),
    "shared": len({one.sizes for one in held} & {one.sizes for one in kept}),
    "left": len(training.problems) - len(kept),
    "judged": judged({"predicted": library, "default": unknown, "wide": wide}),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the functions of the program say of the committed timings."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TIMINGS), str(tmp_path_factory.mktemp("built"))],
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
