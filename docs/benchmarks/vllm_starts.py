"""Measures starts of vLLM on a CPU: without a table and with one, from cold and from warm caches.

    python docs/benchmarks/vllm_starts.py --table TABLE --model FOLDER --out RESULTS.json

The engine is that of tests/engines, which makes vLLM compile on a CPU as on a GPU; TABLE and FOLDER
are what these tests leave in their temporary folder. Each start is a process of its own. Cold: all
caches are empty; warm: they are those of the start before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from warmup import audit

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / "tests" / "engines"
SIZES = "[2]"


def measure(model: Path, table: Path | None, caches: Path, log: Path) -> dict[str, Any]:
    """Start the engine once; return its seconds and counts."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ENGINES / "gpulike")]),
        "VLLM_CACHE_ROOT": str(caches),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "GPULIKE": "1",
    }
    if table is not None:
        variables |= {"WARMUP_TABLE": str(table), "WARMUP_AUDIT_LOG": str(log)}
    command = [sys.executable, str(ENGINES / "serve_vllm.py"), str(model), SIZES]
    started = time.monotonic()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    wall = time.monotonic() - started
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
    line = next(line for line in done.stdout.splitlines() if line.startswith("SAID "))
    said = json.loads(line.removeprefix("SAID "))
    log.touch()
    report = audit([log])
    return {
        "wall_s": round(wall, 1),
        "engine_s": said["seconds"],
        # From a warm cache torch's counters are those that were saved with the graphs.
        "benchmarks": said["benchmarks"] if said["compiled"] else None,
        "graphs_compiled": said["compiled"],
        "graphs_loaded": said["loaded"],
        "hits": sum(report.hits.values()),
        "misses": dict(report.reasons),
        "cached_decisions": report.cached_decisions,
        "foreign": dict(report.foreign),
        "tokens": said["tokens"],
    }


def main() -> None:
    """Measure the four starts, and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    import torch
    import vllm

    starts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, table in (("no table", None), ("table", arguments.table)):
            for state in ("cold", "warm"):
                log = Path(folder) / f"{name} {state}.jsonl"
                caches = Path(folder) / name.replace(" ", "-")
                start = measure(arguments.model, table, caches, log)
                starts[f"{name}, {state}"] = {**start, "load_after": os.getloadavg()[0]}
    result = {
        "cpu": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "vllm": vllm.__version__,
        "compile_sizes": json.loads(SIZES),
        "starts": starts,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
