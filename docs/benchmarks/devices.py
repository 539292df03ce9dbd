"""One GPU against all of a host: `devices.py OUT [--problems N] [--seconds S] [--devices all]`.

The same matmuls are tuned by `warmup build --problems` on one GPU and then with ``--devices``, from
empty compile caches each time. Peaks of the GPUs are measured before. Writes ``devices-NAME.json``
into OUT: the seconds of both builds, from the start of the command to its end, their ratio, and the
rows for which the two tables have another winner, with both times. With the defaults both builds
are ended after 560 seconds in all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driver import HERE, python_path, write
from timings import twice

from warmup.core.child_process import Caches
from warmup.diagnostics.misses import encode_problems
from warmup.keys.order import natural_order
from warmup.keys.registry import kind_of
from warmup.table.store import read

TABLES = HERE.parents[1] / "tables"
PROBLEMS, SECONDS = 30, 560.0
_PEAKS = """
import sys, torch
from warmup.measuring.device_peaks import measured_peaks
[measured_peaks(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
print(torch.cuda.device_count())
"""


def write_problems(path: Path, count: int) -> None:
    """Write a misses document with *count* matmuls of the shipped tables, spread over the sizes.

    Ranges are left out: such a row is timed at several sizes, and takes as long as several rows.
    """
    rows = {key for path in TABLES.glob("*/*.json") for key in read(path).rows if ".." not in key}
    keys = sorted((key for key in rows if kind_of(key).name == "gemm"), key=natural_order)
    chosen = keys[:: max(1, len(keys) // count)][:count]
    path.write_text(encode_problems({(key, "not_in_table"): 1 for key in chosen}, ()))


def own_folder(folder: Path, where: Sequence[str]) -> Path:
    """Return the folder of the build on the devices *where*."""
    return folder / where[1].replace(":", "-").replace(",", "-")


def build(folder: Path, where: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Build the problems in *folder* on the devices *where*, as options, from empty caches.

    Raises:
        SystemExit: the build failed or was not done within *limit_s*.
    """
    own = own_folder(folder, where)
    own.mkdir()
    words = ["build", "--problems", str(folder / "misses.json"), "--out", str(own / "t.json")]
    words += ["--timings", str(own / "t.jsonl")]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "warmup", *words, *where, "--json"],
            env={**Caches(own / "caches").environment(), "PYTHONPATH": python_path()},
            stdout=subprocess.PIPE,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(where)}: not done after {limit_s:.0f} s") from None
    seconds = time.monotonic() - started
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(where)}: exit code {done.returncode}")
    report = json.loads(done.stdout)
    return {
        "options": list(where),
        "seconds": round(seconds, 2),
        "tuned": len(report["problems"]),
        "not_tuned": report["not_tuned"],
        "not_rebuilt": report["not_rebuilt"],
        "devices": report["devices"],
        "stages": report["stages"],
        "machine": report["machine"],
    }


def main() -> None:
    """Measure, print a line for each build, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for both builds")
    parser.add_argument("--devices", default="all")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": python_path()}
    peaks = [sys.executable, "-c", _PEAKS]
    found = subprocess.run(peaks, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    gpus = int(found.stdout)
    first = "cuda:0" if gpus else "cpu"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_problems(folder / "misses.json", given.problems)
        runs, made = [], []
        for where in (("--device", first), ("--devices", given.devices)):
            left_s = given.seconds - (time.monotonic() - began)
            runs.append(build(folder, where, left_s))
            made += [str(own_folder(folder, where) / name) for name in ("t.json", "t.jsonl")]
            tuned, seconds = runs[-1]["tuned"], runs[-1]["seconds"]
            sys.stdout.write(f"{' '.join(where)}: {tuned} tuned, {seconds} s\n")
            # After each build, so that one that is not done in time loses none before.
            device = read(Path(made[0])).provenance.runtime
            path = given.out / f"devices-{device.device.slug}.json"
            document = {"gpus": gpus, "cores": len(os.sched_getaffinity(0)), "device": str(device)}
            write(path, {**document, "runs": runs})
        both = folder / "both.json"
        twice(str(both), *made)
        tables = json.loads(both.read_text())
        del tables["all"]
    speed_up = round(runs[0]["seconds"] / runs[1]["seconds"], 3)
    write(path, {**document, "runs": runs, "speed_up": speed_up, "tables": tables})
    sys.stdout.write(f"{speed_up}x the speed of one device; {path}\n")


if __name__ == "__main__":
    main()
