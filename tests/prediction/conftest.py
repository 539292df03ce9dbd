"""Timings measured on an H100, and stated times of a device that obeys the formula."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.method import Launch
from warmup.core.rows import Family, Scope
from warmup.keys.gemm import GEMM
from warmup.keys.gemm_text import parse_problem
from warmup.keys.registry import kind_of
from warmup.prediction.evaluation import Evaluation, evaluate
from warmup.prediction.features import LIBRARY_CONFIG, CandidateConfig, GemmSizes, sizes_of
from warmup.prediction.formula import Constants, time_us
from warmup.prediction.timing_lines import MeasuredOn, read_timings
from warmup.prediction.training import TrainingProblem, TrainingSet, training_set
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs/benchmarks/results/timings/h100-vit.jsonl.gz"
STATED = Constants(5e6, 8e6, 3e6, 2.5, 0.2, 2.0, 1.6)
LIBRARY_STATED = Constants(4e6, 9e6, 2e6, 3.5, 0.25, 1.0, 1.6)
CONFIGS = tuple(
    CandidateConfig("triton::mm", m, n, k, 8, 4, 4)
    for m, n, k in itertools.product((16, 64, 128), (64, 128), (64,))
)


def stated_sizes(m: int, n: int, k: int) -> GemmSizes:
    """Return the sizes of a linear layer in bf16."""
    key = f"mm m={m} n={n} k={k} bf16 a=row b=col out=bf16 | epilogue=none"
    sizes = sizes_of(parse_problem(key))
    assert sizes is not None
    return sizes


@pytest.fixture(scope="session")
def outputs_by_seed() -> Callable[[str, Path], set[str]]:
    """What a program prints in two fresh processes with different hash seeds and a path."""

    def run(program: str, path: Path) -> set[str]:
        outputs = set()
        for seed in ("1", "2"):
            done = subprocess.run(
                [sys.executable, "-c", program, str(path)],
                env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            outputs.add(done.stdout)
        return outputs

    return run


@pytest.fixture(scope="session")
def measured() -> TrainingSet:
    """Twelve GEMMs of a ViT on an H100, each with some thirty candidates."""
    return training_set(read_timings([MEASURED]))


@pytest.fixture(scope="session")
def library_times() -> TrainingSet:
    """The library's times alone of GEMMs in the shipped tables, where the library won.

    Those of the zoo are timed in CUDA graphs, and these are not mixed.
    """
    problems: dict[str, TrainingProblem] = {}
    for path in sorted((ROOT / "tables/nvidia-h200").glob("*.json")):
        if read(path).policy.timing.launch != Launch.EAGER:
            continue
        for key, row in read(path).rows.items():
            if kind_of(key) is not GEMM or ".." in key or row.winner.family is not Family.EXTERN:
                continue
            problem = parse_problem(key).without_epilogue
            sizes, evidence = sizes_of(problem), row.evidence
            alone_us = evidence.time_us if evidence.scope is Scope.BARE else evidence.bare_us
            if sizes is not None and alone_us is not None:
                times = {LIBRARY_CONFIG: alone_us}
                problems[problem.key] = TrainingProblem(problem.key, path.stem, sizes, times)
    on = MeasuredOn(device="H200", sm_count=132, arch="sm_90", torch="2.11.0", triton="3.6.0")
    return TrainingSet(tuple(problems.values()), on, "", {}, {})


@pytest.fixture(scope="session")
def stated() -> TrainingSet:
    """GEMMs of four models and random ones, on a device whose times are those of the formula."""
    on = MeasuredOn(device="stated", sm_count=132, arch="sm_90", torch="2.13.0", triton="3.8.0")
    widths = {"a": 768, "b": 1024, "c": 1536, "d": 2048, "random": 1280}
    problems = []
    for source, width in widths.items():
        layers = ((width, width), (4 * width, width), (width, 4 * width))
        for m, (n, k) in itertools.product((1, 16, 48, 128, 640, 1024, 3000), layers):
            sizes = stated_sizes(m, n, k)
            times = {config: time_us(STATED, sizes, config, 132) for config in CONFIGS}
            times[LIBRARY_CONFIG] = time_us(LIBRARY_STATED, sizes, LIBRARY_CONFIG, 132)
            problems.append(TrainingProblem(f"{m} {n} {k}", source, sizes, times))
    return TrainingSet(tuple(problems), on, "eager cold", {"triton::mm": "abc"}, {})


@pytest.fixture(scope="session")
def evaluation(stated: TrainingSet) -> Evaluation:
    """The device model of the stated device, with its held-out evidence."""
    return evaluate(stated)


@pytest.fixture(scope="session")
def sized() -> Callable[[int, int, int], GemmSizes]:
    """``sized(m, n, k)``: the sizes of a linear layer in bf16."""
    return stated_sizes
