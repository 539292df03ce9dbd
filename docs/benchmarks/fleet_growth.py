"""Growth of a build with its workers: `fleet_growth.py OUT [--problems N] [--seconds S]`.

`build_with` runs over a real Ray cluster of this machine, of 1 to 4 nodes with a worker each. The
workers measure nothing: each problem takes S seconds in which the worker sleeps
(`tests/programs/fake_device_worker.py`), so that what is measured is the queue, Ray, the messages
and the table. Writes ``fleet-growth.json`` into OUT: by number of workers the seconds from the
moment in which all were ready to the end, what they would be at least, and their ratio.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmup.table.codec import encode
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "programs" / "cluster_driver.py"
TABLE = ROOT / "tables" / "nvidia-h200"
WORKERS = (1, 2, 3, 4)


def measure(
    address: str, workers: int, rows: str, keys: list[str], each_s: float
) -> dict[str, Any]:
    """Return the seconds of a build of *keys* on so many *workers*.

    Raises:
        SystemExit: the build failed, or a problem has no row.
    """
    with tempfile.TemporaryDirectory() as folder:
        case = {"table": rows, "control_us": 100.0, "faults": {}, "seconds": each_s}
        given = {
            "address": address,
            "devices": f"cpu={workers}",
            "keys": keys,
            "case": case,
            "out": str(Path(folder) / "t.json"),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", str(DRIVER), json.dumps(given)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        started = ready = time.monotonic()
        report: dict[str, Any] = {}
        for line in process.stdout:
            if line.startswith("{"):
                report = json.loads(line)
                if "ready" in report:
                    ready = time.monotonic()
        ended = time.monotonic()
        if process.wait() or report.get("rows") != sorted(keys):
            raise SystemExit(f"{workers} workers: the build failed")
    least = math.ceil(len(keys) / workers) * each_s
    return {
        "workers": workers,
        "starting_s": round(ready - started, 2),
        "tuning_s": round(ended - ready, 2),
        "least_s": least,
        "share": round(least / (ended - ready), 3),
        "by_device": report["by_device"],
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    """Measure, print a line for each number of workers, and write the document."""
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=0.5)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    table = read(next(path for path in sorted(TABLE.rglob("*.json")) if _has(path, given.problems)))
    keys = list(table.rows)[: given.problems]
    rows = encode(replace(table, rows={key: table.rows[key] for key in keys}, imported={}))
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    for _ in WORKERS:
        cluster.add_node(num_cpus=1)
    runs = []
    for workers in WORKERS:
        runs.append(measure(cluster.address, workers, rows, keys, given.seconds))
        run = runs[-1]
        sys.stdout.write(
            f"{workers} workers: {run['tuning_s']} s, at least {run['least_s']} s, "
            f"{run['share']:.0%} of the ideal\n"
        )
        sys.stdout.flush()
    cluster.shutdown()
    document = {
        "machine": {"python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0))},
        "ray": _version(),
        "problems": len(keys),
        "seconds_each": given.seconds,
        "runs": runs,
    }
    path = given.out / "fleet-growth.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{path}\n")


def _has(path: Path, rows: int) -> bool:
    return len(read(path).rows) >= rows


def _version() -> str:
    import ray

    return str(ray.__version__)


if __name__ == "__main__":
    main()
