"""Small numbers of warmup itself: importing it, loading a large table, one lookup.

    python docs/benchmarks/micro.py

Prints the best of several runs of each, and writes results/micro.json.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from warmup.core.events import Emitter  # noqa: E402
from warmup.core.rows import Evidence, Family, Row, Winner  # noqa: E402  after the path
from warmup.core.runtime import Device, Runtime  # noqa: E402
from warmup.table import Policy, Provenance, Table  # noqa: E402
from warmup.table.lookup import Lookup, OnMiss  # noqa: E402
from warmup.table.store import read, write  # noqa: E402

ROWS = 10_000
KWARGS = (("ACC_TYPE", "tl.float32"), ("BLOCK_K", 64), ("BLOCK_M", 128), ("BLOCK_N", 128))


def best_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest of *repeats* runs in milliseconds."""
    samples = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        samples.append((time.perf_counter() - begin) * 1e3)
    return min(samples)


def import_ms() -> tuple[float, bool]:
    """Return what ``import warmup`` costs by ``-X importtime``, and whether it loaded torch."""
    samples, loads_torch = [], False
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import warmup"],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
        total = re.search(r"\|\s+(\d+) \| warmup$", done.stderr, re.MULTILINE)
        assert total is not None
        samples.append(int(total[1]) / 1e3)
        loads_torch |= " torch\n" in done.stderr
    return min(samples), loads_torch


def large_table() -> Table:
    """Return a table with ten thousand rows of realistic size."""
    device = Device(type="cuda", vendor="nvidia", name="NVIDIA H200", arch="sm_90", sm_count=132)
    provenance = Provenance(Runtime(device=device, torch="2.11.0"), "0", "2026-01-01T00:00:00Z")
    policy = Policy(mode="max-autotune", options={}, timing="none", seed=0, tolerance={})
    winner = Winner(Family.TEMPLATE, "triton::mm", KWARGS, "0" * 64)
    evidence = Evidence(
        time_us=10.5, library_us=12.25, runner_up="aten::mm", runner_up_us=12.25, tried=20, failed=1
    )
    row = Row(winner, evidence)
    key = "mm m={} n={} k=4096 bf16 a=row b=col out=bf16 | epilogue=gelu_tanh,mul(bf16[560,1280])"
    rows = {key.format(m, n): row for m in range(1, 101) for n in range(1, ROWS // 100 + 1)}
    return Table(provenance, policy, rows)


def main() -> None:
    table = large_table()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        write(path, table)
        load_ms = best_ms(lambda: read(path), 5)
        size = path.stat().st_size
    lookup = Lookup(table.rows, OnMiss.FALLBACK, Emitter([]))
    key = next(iter(table.rows))
    find_us = best_ms(lambda: [lookup.find(key) for _ in range(1000)], 5)
    winner = table.rows[key].winner

    def answer() -> None:
        for _ in range(1000):
            lookup.find(key)
            lookup.hit(key, winner)

    answer_us = best_ms(answer, 5)
    milliseconds, loads_torch = import_ms()
    record = {
        "machine": {
            "python": sys.version.split()[0],
            "cores": os.cpu_count(),
            "cpu": platform.processor(),
        },
        "import_ms": round(milliseconds, 1),
        "import_loads_torch": loads_torch,
        "load_10000_rows_ms": round(load_ms, 1),
        "table_bytes": size,
        "find_us": round(find_us, 2),
        "find_and_event_us": round(answer_us, 2),
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "micro.json").write_text(
        json.dumps(record, indent=2, sort_keys=True) + "\n"
    )
    sys.stdout.write(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
