"""Growth of a build on paper: `fleet_simulation.py OUT`, from recorded times, without a device.

A build's time depends on how long a worker takes for a problem, and on how long the driver does:
it writes the table anew for each finished problem, and workers wait for that. The first is taken
from builds of an H100 in `results/` (the seconds of a build over its problems), the second is
measured here, by writing tables of several sizes. The simulation gives each problem to the worker
that is free first, and lets the driver finish one problem after the other. Writes
``fleet-simulation.json`` into OUT.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmup.table.store import add_rows, read, write

HERE = Path(__file__).resolve().parent
RECORDED = ("llama3-8b-tokens", "qwen2-7b-tokens", "vit")
TABLE = HERE.parents[1] / "tables" / "nvidia-h200" / "llama-blocks.bf16.json"
ROWS = (0, 500, 1000, 2000, 4000)
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REPEATS = 5


def recorded_seconds() -> dict[str, float]:
    """Return the seconds that an H100 took for each problem, by the build that recorded it."""
    seconds = {}
    for name in RECORDED:
        document = json.loads((HERE / "results" / f"zoo-h100-{name}.json").read_text())
        (build,) = document["builds"].values()
        seconds[name] = build["seconds"] / build["problems"]
    return seconds


def driver_seconds() -> dict[int, float]:
    """Return the seconds that adding one row takes, by the number of rows of the table."""
    table = read(TABLE)
    (key, row), *_ = table.rows.items()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        for count in ROWS:
            rows = {key.replace(" m=", f" m={index}", 1): row for index in range(1, count + 1)}
            write(path, replace(table, rows=rows, imported={}))
            times = []
            for index in range(REPEATS):
                fresh = {key.replace(" m=", f" m={count + index + 1}", 1): row}
                started = time.perf_counter()
                add_rows(path, table.provenance, table.policy, fresh)
                times.append(time.perf_counter() - started)
            found[count] = round(sorted(times)[REPEATS // 2], 5)
    return found


def simulate(problems: Sequence[float], workers: int, fixed_s: float, each_row_s: float) -> float:
    """Return the seconds of a build; the driver takes ``fixed_s + each_row_s * rows`` for each."""
    free = [(0.0, worker) for worker in range(workers)]  # when each worker has its next problem
    waiting = iter(problems)
    running = [(at + seconds, worker) for (at, worker), seconds in zip(free, waiting, strict=False)]
    heapq.heapify(running)
    driver_free = 0.0
    rows = 0
    while running:
        done, worker = heapq.heappop(running)
        driver_free = max(driver_free, done) + fixed_s + each_row_s * rows
        rows += 1
        if (seconds := next(waiting, None)) is not None:
            heapq.heappush(running, (driver_free + seconds, worker))
    return driver_free


def line_through(times: dict[int, float]) -> tuple[float, float]:
    """Return the least squares line through *times*: seconds without rows, and for each row."""
    mean_x, mean_y = (sum(values) / len(times) for values in (times.keys(), times.values()))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in times.items()) / sum(
        (x - mean_x) ** 2 for x in times
    )
    return mean_y - slope * mean_x, slope


def main() -> None:
    """Measure the driver, simulate, print a line for each number of workers, write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    family = json.loads((HERE / "results" / "store-family.json").read_text())["families"][0]
    count = family["tuned"]
    recorded, driver = recorded_seconds(), driver_seconds()
    fixed_s, each_row_s = line_through(driver)
    problems = list(itertools.islice(itertools.cycle(recorded.values()), count))
    runs: list[dict[str, Any]] = []
    alone = simulate(problems, 1, fixed_s, each_row_s)
    for workers in WORKERS:
        seconds = simulate(problems, workers, fixed_s, each_row_s)
        free = simulate(problems, workers, 0.0, 0.0)
        runs.append(
            {
                "workers": workers,
                "seconds": round(seconds, 1),
                "without_driver_s": round(free, 1),
                "speed_up": round(alone / seconds, 2),
            }
        )
        sys.stdout.write(f"{workers:4} workers: {seconds:9.1f} s, {alone / seconds:.2f}x\n")
    document = {
        "machine": {
            "python": sys.version.split()[0],
            "cores": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[0], 2),
        },
        "models": family["models"],
        "asked": family["asked"],
        "problems": count,
        "recorded_s": {name: round(seconds, 3) for name, seconds in recorded.items()},
        "driver_s": driver,
        "driver_fixed_s": round(fixed_s, 6),
        "driver_each_row_s": round(each_row_s, 8),
        "runs": runs,
    }
    path = given.out / "fleet-simulation.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
