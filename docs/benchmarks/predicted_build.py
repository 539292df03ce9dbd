"""Builds of held-out GEMMs in the predicted, the default and the wide search, and what each found.

    python predicted_build.py TIMINGS.jsonl.gz OUT [--models llama-3-8b,...] [--limit 560]

A device model is fitted to TIMINGS without the problems of *models* and without all of their sizes.
Their problems are then built by `warmup build --problems` once for each search, in a process of its
own with empty caches; `predicted` has that device model. The peaks of the device, which the first
build of a machine measures, are measured before. OUT/predicted-build.json has the seconds from the
start to the end of each process, the stages of the build, the candidates that it timed, and for
each problem the winner of each search with its time in the wide search, over the best time there:
one run's times alone are compared, and times that scatter are left out. The wide search comes
last; where *limit* ends it, the problems that it had timed are judged. Of another search that
*limit* ends nothing is in the document. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from driver import StoppedError, now, python_path, run_program, say, write

from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.diagnostics.misses import encode_problems
from warmup.prediction.features import library_among
from warmup.prediction.fitting import fit
from warmup.prediction.held_out import problems_without
from warmup.prediction.model_file import write_device_model
from warmup.prediction.timing_lines import TimedProblem, read_timings
from warmup.prediction.training import training_set
from warmup.table.store import read

MODELS = "bert-large,llama-3-8b,t5-1.1-large,vit-base-224"
SEARCHES = "predicted,default,wide"
MEASURE_PEAKS = """
import torch
from warmup.measuring.device_peaks import measured_peaks
measured_peaks(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
"""
WIDE = "wide"


def measure_peaks() -> None:
    """Measure the peaks of the device in a process that ends, unless this machine has them."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    subprocess.run([sys.executable, "-c", MEASURE_PEAKS], env=environment, check=True)


def run_build(search: str, out: Path, asked: argparse.Namespace, left_s: float) -> dict[str, Any]:
    """Return what a build in *search* from empty caches took.

    Raises:
        StoppedError: it failed, or *left_s* ended it.
    """
    words = [sys.executable, "-m", "warmup", "build", "-vv"]
    words += ["--problems", str(out / "problems.json")]
    words += ["--out", str(out / f"{search}.json"), "--json"]
    words += ["--devices", asked.devices] if asked.devices else ["--device", asked.device]
    words += ["--search", search, "--timings", str(out / f"{search}.jsonl")]
    if search == "predicted":
        words += ["--device-model", str(out / "held-out.model.json"), "--top", str(asked.top)]
    started = time.monotonic()
    report = json.loads(run_program(words, out / f"{search}.log", max(left_s, 1.0)))
    return {"seconds": round(time.monotonic() - started, 2), "stages": report["stages"]}


def judged(
    wide: Iterable[TimedProblem], winners: Mapping[str, Mapping[str, Winner]]
) -> list[dict[str, Any]]:
    """Return for each problem the time of each search's winner over the best time in *wide*.

    *winners* are by search and key. None stands for a search without a row, for a winner without a
    time in *wide*, and for a library's kernel without a time. A problem without times is left out.
    """
    problems = []
    for one in wide:
        if not one.times_us:
            continue
        best = min(one.times_us.values())
        chosen = {search: by_key.get(one.key) for search, by_key in winners.items()}
        library = library_among(one.key.partition(" ")[0], one.times_us)
        times = {
            search: None if winner is None else one.times_us.get(winner.choice)
            for search, winner in {**chosen, "library": library}.items()
        }
        problem = {
            "key": one.key,
            "best_us": best,
            "winners": {search: winner and str(winner) for search, winner in chosen.items()},
            "regrets": {
                search: None if us is None else round(us / best, 4) for search, us in times.items()
            },
        }
        problems.append(problem)
    return problems


def summary(regrets: Iterable[float | None]) -> dict[str, float | None]:
    """Return the number, the geometric mean and the worst of the *regrets* that are known."""
    known = [each for each in regrets if each is not None]
    mean = round(geometric_mean(known), 4) if known else None
    return {"problems": len(known), "mean": mean, "worst": max(known, default=None)}


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
    parser.add_argument("--devices", help="as of `warmup build`; default one process, on --device")
    asked = parser.parse_args()
    until = time.monotonic() + asked.limit
    training, out = training_set(read_timings([asked.timings])), asked.out
    models = asked.models.split(",")
    kept = problems_without(training, models)
    model = fit(training, kept)
    out.mkdir(parents=True, exist_ok=True)
    write_device_model(out / "held-out.model.json", model)
    held = [one.key for one in training.problems if one.source in models]
    problems = encode_problems({(key, MissReason.NOT_IN_TABLE.value): 1 for key in held}, ())
    (out / "problems.json").write_text(problems, encoding="utf-8")
    measure_peaks()
    document: dict[str, Any] = {
        "created": now(),
        "device": training.on.device,
        "torch": training.on.torch,
        "triton": training.on.triton,
        "held_out": models,
        "fitted_to": model.problems,
        "problems": len(held),
        "top": asked.top,
        "devices": asked.devices,
        "builds": {},
    }
    winners: dict[str, dict[str, Winner]] = {}
    stopped = ""
    for search in asked.searches.split(","):
        taken: dict[str, Any] = {}
        try:
            taken = run_build(search, out, asked, until - time.monotonic())
        except StoppedError as error:
            stopped = str(error)
            if search != WIDE or not (out / f"{WIDE}.json").exists():
                raise SystemExit(stopped) from None
        rows = read(out / f"{search}.json").rows
        winners[search] = {key: row.winner for key, row in rows.items()}
        timed = read_timings([out / f"{search}.jsonl"])
        if search == WIDE:
            document["judged"] = judged(timed, winners)
        if not stopped:
            taken["candidates_timed"] = sum(len(one.times_us) + one.scattered for one in timed)
            document["builds"][search] = taken
            say(search, taken)
        write(out / "predicted-build.json", document)
    for search in (*winners, "library") if "judged" in document else ():
        regret = summary(one["regrets"][search] for one in document["judged"])
        document["builds"].setdefault(search, {})["regret"] = regret
        say(search, regret)
    write(out / "predicted-build.json", document)
    if stopped:
        raise SystemExit(stopped)


if __name__ == "__main__":
    main()
