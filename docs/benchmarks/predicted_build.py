"""Builds of held-out GEMMs in the predicted, the default and the wide search, and what each found.

    python predicted_build.py TIMINGS.jsonl.gz OUT [--models llama-3-8b,...] [--limit 560]

A device model is fitted to TIMINGS without the problems of *models* and without all of their sizes.
Their problems are then built by `warmup build --problems` once for each search, in a process of its
own with empty caches; `predicted` has that device model. The peaks of the device, which the first
build of a machine measures, are measured before. OUT/predicted-build.json has the seconds from the
start to the end of each process, the stages of the build, the candidates that it timed, and for
each problem the winner of each search with its time in the wide search, over the best time there:
one run's times alone are compared. The wide search comes last; what *limit* ends is not in the
document.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from driver import now, python_path, say, write

from warmup.core.child_process import Caches
from warmup.prediction.fitting import fit
from warmup.prediction.held_out import problems_without
from warmup.prediction.model_file import write_device_model
from warmup.prediction.timing_lines import read_timings
from warmup.prediction.training import TrainingSet, training_set

MODELS = "bert-large,llama-3-8b,t5-1.1-large,vit-base-224"
SEARCHES = "predicted,default,wide"
MEASURE_PEAKS = """
import torch
from warmup.measuring.device_peaks import measured_peaks
measured_peaks(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
"""
WIDE = "wide"

Line = Mapping[str, Any]


def write_problems(path: Path, training: TrainingSet, models: Sequence[str]) -> int:
    """Write the problems of *models* as a misses document, and return how many there are."""
    problems = [
        {"key": one.key, "kind": "gemm", "reason": "not_in_table", "count": 1}
        for one in training.problems
        if one.source in models
    ]
    write(path, {"schema": 1, "digests": [], "problems": problems})
    return len(problems)


def measure_peaks() -> None:
    """Measure the peaks of the device in a process that ends, unless this machine has them."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    subprocess.run([sys.executable, "-c", MEASURE_PEAKS], env=environment, check=True)


def run_build(
    search: str, out: Path, asked: argparse.Namespace, left_s: float
) -> dict[str, Any] | None:
    """Return what a build in *search* from empty caches took, None if *left_s* ended it.

    Raises:
        SystemExit: it failed.
    """
    words = ["--problems", str(out / "problems.json"), "--out", str(out / f"{search}.json")]
    words += ["--json", "--device", asked.device]
    words += ["--search", search, "--timings", str(out / f"{search}.jsonl")]
    if search == "predicted":
        words += ["--device-model", str(out / "held-out.model.json"), "--top", str(asked.top)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        caches = {**Caches(Path(folder)).environment(), "CUDA_CACHE_PATH": f"{folder}/cuda"}
        started = time.monotonic()
        report, log = out / f"{search}-report.json", out / f"{search}.log"
        with report.open("w") as stdout, log.open("w") as stderr:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "warmup", "build", *words],
                    env={**caches, "PYTHONPATH": python_path()},
                    stdout=stdout,
                    stderr=stderr,
                    timeout=max(left_s, 1.0),
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
        seconds = round(time.monotonic() - started, 2)
    if done.returncode:
        raise SystemExit(f"the build in the search {search} failed: see {log}")
    return {"seconds": seconds, "stages": json.loads(report.read_text())["stages"]}


def lines_by_key(path: Path) -> dict[str, Line]:
    """Return the last line of timings of each problem in *path*."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["key"]: line for line in lines}


def times_of(line: Line) -> dict[str, float]:
    """Return the time of each candidate of *line* that ran, in microseconds."""
    timed = (each for each in line["candidates"] if each["time_us"] is not None)
    return {each["choice"]: each["time_us"] for each in timed}


def judged(found: Mapping[str, Mapping[str, Line]]) -> list[dict[str, Any]]:
    """Return for each problem the time of each search's winner over the wide search's best time.

    A winner that the wide search did not time has None; so has the library's kernel there.
    """
    problems = []
    for key, line in found[WIDE].items():
        times = times_of(line)
        best = min(times.values())
        library = next((us for choice, us in times.items() if choice.startswith("aten::")), None)
        winners = {search: lines[key]["winner"] for search, lines in found.items() if key in lines}
        regrets = {
            search: round(times[winner] / best, 4) if winner in times else None
            for search, winner in winners.items()
        }
        regrets["library"] = None if library is None else round(library / best, 4)
        problems.append({"key": key, "best_us": best, "winners": winners, "regrets": regrets})
    return problems


def summary(regrets: Iterable[float | None]) -> dict[str, float]:
    """Return the number, the geometric mean and the worst of the *regrets* that are known."""
    known = [each for each in regrets if each is not None]
    mean = math.exp(math.fsum(map(math.log, known)) / len(known)) if known else math.nan
    return {"problems": len(known), "mean": round(mean, 4), "worst": max(known, default=math.nan)}


def main() -> None:
    """Build in each search, and write what it took and found after each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("timings", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default=MODELS, help="those that are held out")
    parser.add_argument("--searches", default=SEARCHES)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--limit", type=float, default=560.0, help="seconds")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    until = time.monotonic() + asked.limit
    training, out = training_set(read_timings([asked.timings])), asked.out
    models = asked.models.split(",")
    kept = problems_without(training, models)
    model = fit(training, kept)
    out.mkdir(parents=True, exist_ok=True)
    write_device_model(out / "held-out.model.json", model)
    count = write_problems(out / "problems.json", training, models)
    measure_peaks()
    document: dict[str, Any] = {
        "created": now(),
        "device": training.on.device,
        "torch": training.on.torch,
        "triton": training.on.triton,
        "held_out": models,
        "fitted_to": model.problems,
        "problems": count,
        "top": asked.top,
        "builds": {},
    }
    found: dict[str, dict[str, Line]] = {}
    for search in asked.searches.split(","):
        taken = run_build(search, out, asked, until - time.monotonic())
        if taken is None:
            say(f"{search}: ended by the limit")
            break
        found[search] = lines_by_key(out / f"{search}.jsonl")
        timed = sum(len(times_of(line)) for line in found[search].values())
        document["builds"][search] = {**taken, "candidates_timed": timed}
        say(f"{search}: {taken['seconds']} s, {timed} candidates timed, {taken['stages']}")
        write(out / "predicted-build.json", document)
    if WIDE in found:
        document["judged"] = judged(found)
        for search in (*found, "library"):
            document["builds"].setdefault(search, {})["regret"] = summary(
                one["regrets"].get(search) for one in document["judged"]
            )
            say(search, document["builds"][search]["regret"])
        write(out / "predicted-build.json", document)


if __name__ == "__main__":
    main()
