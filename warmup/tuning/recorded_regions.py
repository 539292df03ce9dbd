"""Regions of a recorded program: written while it compiles, and measured when it has ended.

Whether a GEMM is padded, and into how many parts a reduction is split, is measured by compiling the
operations around it each way. A program that compiles cannot do that, so its `RegionQuestion`s wait
in a file of JSON lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torch import nn

from warmup.core.trial import trial_from_json, trial_to_json
from warmup.keys.question import RegionQuestion
from warmup.models.loading import LoadedModel
from warmup.tuning.bucket_compiler import BucketCompiler
from warmup.tuning.progress import Progress
from warmup.tuning.region_questions import WaitingQuestion
from warmup.tuning.region_ways import measure_regions
from warmup.tuning.setup import BuildSetup
from warmup.tuning.trials import ways_trial
from warmup.tuning.tuner import Tuner

_REGION_MODEL: Final = "region"


def write_region(path: Path, question: RegionQuestion, tuner: Tuner) -> None:
    """Append *question*, which has a region, to the file *path*.

    Raises:
        OSError: the file cannot be written.
    """
    trial = ways_trial(question, tuner.device, tuner.method, tuner.tolerance, seed=tuner.seed)
    line = {"trial": trial_to_json(trial), "keys": sorted(question.keys_in_region)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_regions(path: Path) -> tuple[RegionQuestion, ...]:
    """Return the questions in the file *path*, each key once; none where there is no file.

    A line that a killed process left unfinished is skipped: its question is a miss, as in the log.
    """
    questions: dict[str, RegionQuestion] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        trial = trial_from_json(document["trial"])
        ways = tuple(candidate.winner for candidate in trial.candidates)
        keys = frozenset(document["keys"])
        questions[trial.key] = RegionQuestion(trial.key, ways, trial.region, keys)
    return tuple(questions.values())


def measure_recorded(
    questions: Sequence[RegionQuestion], setup: BuildSetup, progress: Progress, tuner: Tuner
) -> None:
    """Measure each of *questions* as a build does, and write its row; GEMMs on the way are tuned.

    Raises:
        TableError: the table cannot be written.
    """
    compiler = BucketCompiler(
        setup=setup,
        model=LoadedModel(
            nn.Identity(), None, _REGION_MODEL
        ),  # a region is compiled without the model
        progress=progress,
        tuner=tuner,
    )
    for question in questions:
        tuner.region_questions.keep(WaitingQuestion(question, (), is_disturbed=False))
    measure_regions(compiler)
