"""Records traces of the zoo's models, for `warmup profile` and for checks of it.

    python docs/benchmarks/traces.py --out OUT [--models vit-1,bert-large] [--tables FOLDER]

A model's table is FOLDER/NAME/table.json or OUT/NAME/table.json, else it is built there. Then each
of the trace's kinds is recorded by a process of its own with empty caches: ``default`` (no table),
``table``, and ``table-graphs`` (the table, in CUDA graphs). What exists is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from driver import HERE, add_options, python_path, say
from zoo_models.entries import SERVED, TINY, Entry

from warmup.core.child_process import Caches

MODELS = "vit-1,bert-large,llama3-8b-tokens"
KINDS = {"default": "default", "table": "default", "table-graphs": "reduce-overhead"}
_SHOWN = 1500


def run(words: list[str], log: Path, limit_s: float) -> bool:
    """Return whether *words* ended well within the limit; what they said is in *log*."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches, log.open("w") as said:
        environment = Caches(Path(caches)).environment()
        environment["PYTHONPATH"] = python_path()
        try:
            code = subprocess.run(
                words, stdout=said, stderr=said, env=environment, timeout=limit_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        text = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:]
        say(f"{log.name}: exit code {code}: {text}")
    return not code


def record(request: str) -> None:
    """Record what *request*, JSON, describes; the process that does it was started for it."""
    from warmup.serving.record_trace import Recording, record_trace
    from warmup.table.store import read

    asked = json.loads(request)
    out, table = Path(asked.pop("out")), asked.pop("table")
    record_trace(Recording(**asked, table=None if table is None else read(Path(table))), out)


def main() -> None:
    """Build and record what is asked and missing, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder of the traces and tables")
    parser.add_argument("--models", default=MODELS, help="names of zoo_models/entries.py")
    parser.add_argument("--tables", type=Path, help="folder with tables: NAME/table.json")
    parser.add_argument("--calls", type=int, default=5, help="calls of each bucket in a trace")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of traces")
    parser.add_argument("--tiny", action="store_true", help="the same architectures, for a CPU")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    add_options(parser, "device", "limit")
    asked = parser.parse_args()
    if asked.record:
        record(asked.record)
        return
    ends = time.monotonic() + asked.limit
    for name in asked.models.split(","):
        entry: Entry = (TINY if asked.tiny else SERVED)[name]
        folder = asked.out.resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / "table.json"
        if asked.tables and (given := asked.tables.resolve() / name / "table.json").exists():
            table = given
        begun = time.monotonic()
        if not table.exists() and asked.kinds != "default":
            words = ["build", *entry.words, "--out", str(table), "--device", asked.device]
            program = [sys.executable, "-m", "warmup", *words]
            done = run(program, folder / "build.log", ends - begun)
            say(f"{name}: table {'built' if done else 'not built'}, {seconds(begun)}")
        for kind in asked.kinds.split(","):
            trace, begun = folder / f"{kind}.json.gz", time.monotonic()
            if trace.exists() or (kind != "default" and not table.exists()):
                continue
            request = {
                "model": entry.model,
                "dims": list(entry.dims),
                "inputs": list(entry.inputs),
                "device": asked.device,
                "mode": KINDS[kind],
                "calls": asked.calls,
                "table": None if kind == "default" else str(table),
                "out": str(trace),
            }
            program = [sys.executable, str(HERE / "traces.py"), "--record", json.dumps(request)]
            if run(program, folder / f"{kind}.log", max(ends - begun, 1.0)):
                say(f"{name}: {kind}: {trace.stat().st_size / 2**20:.2f} MiB, {seconds(begun)}")


def seconds(begun: float) -> str:
    """Return the time since *begun*."""
    return f"{time.monotonic() - begun:.0f} s"


if __name__ == "__main__":
    main()
