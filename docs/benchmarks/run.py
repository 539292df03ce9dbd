"""Build a table for one model, then measure server starts against it, each from empty caches.

    python docs/benchmarks/run.py --name mlp-cpu --model examples/mlp.py:MLP --seqlens 16,64,256 \
        --starts default,max-autotune-gemm,table --repeats 3 --results docs/benchmarks/results

Starts are interleaved: every repeat runs each kind once. Writes RESULTS/NAME.json and the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def environment(folder: str) -> dict[str, str]:
    """Return this environment with every cache in *folder*."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "CUDA_CACHE_PATH": f"{folder}/cuda",
    }
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **caches, "PYTHONPATH": path}


def run_start(case: dict[str, Any]) -> dict[str, Any]:
    """Run one start in a fresh process with empty caches; return what it printed.

    A warm start runs twice over the same caches, and the second one is returned.
    """
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2 if case["start"].endswith("-warm") else 1):
            done = subprocess.run(
                [
                    sys.executable,
                    str(HERE / "start.py"),
                    json.dumps({**case, "spawned": time.time()}),
                ],
                env=environment(folder),
                capture_output=True,
                text=True,
                check=False,
            )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{case['start']} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def build(arguments: argparse.Namespace, table: Path) -> dict[str, Any]:
    """Build the table with the command line, from empty caches; return seconds and counts."""
    command = [sys.executable, "-m", "warmup", "build", "--model", arguments.model]
    command += ["--seqlens", arguments.seqlens, "--out", str(table), "--json"]
    command += ["--device", arguments.device]
    command += ["--dtype", arguments.dtype] if arguments.dtype else []
    command += [word for text in arguments.input for word in ("--input", text)]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = subprocess.run(
            command, env=environment(folder), capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"build failed ({done.returncode}):\n{done.stderr[-3000:]}")
    sys.stderr.write(done.stderr[-1500:])
    report = json.loads(done.stdout)
    candidates = [c for problem in report["problems"] for c in problem["candidates"]]
    return {
        "seconds": round(seconds, 2),
        "rows": report["rows"],
        "problems": len(report["problems"]),
        "candidates": len(candidates),
        "failed": sum(c["time_us"] is None for c in candidates),
        "largest_error": max(bucket["error"] for bucket in report["buckets"]),
        "digest": report["digest"],
    }


def pack_bundles(
    arguments: argparse.Namespace, table: Path, runtime: Any, folder: Path
) -> dict[str, dict[str, Any]]:
    """Make the bundle of each start that wants one, and return where it is, its size and time."""
    from warmup.tuning.pack_bundle import input_options, pack

    made = {}
    for start in set(arguments.starts.split(",")) & {"bundle", "bundle-graphs"}:
        (folder / start).mkdir()
        copy = Path(shutil.copy(table, folder / start))
        words = input_options(
            seqlens=arguments.seqlens,
            dims=None,
            inputs=arguments.input,
            dtype=arguments.dtype,
            policy="exact",
        )
        words.append(f"--device={arguments.device}")
        graphs_for = "default" if start == "bundle-graphs" else None
        packed = pack(copy, arguments.model, runtime, words, graphs_for)
        made[start] = {**asdict(packed), "path": str(packed.path)}
        sys.stdout.write(f"{packed}\n")
    return made


def build_facts(arguments: argparse.Namespace, table: Path) -> dict[str, Any] | None:
    """Return what is known of the table's build: made now, or as an earlier result tells it."""
    if not arguments.no_build:
        return build(arguments, table)
    if arguments.build_record is None:
        return None
    facts: dict[str, Any] = json.loads(arguments.build_record.read_text())["build"]
    digest = json.loads(table.read_text())["provenance"]["digest"]
    return facts if facts["digest"] == digest else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seqlens", required=True)
    parser.add_argument("--input", action="append", default=[])
    parser.add_argument("--dtype", help="cast model and inputs, as in warmup build")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--starts", default="default,max-autotune-gemm,table")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once", default="", help="starts that run in the first repeat only")
    parser.add_argument("--no-build", action="store_true", help="use the table that is there")
    parser.add_argument("--build-record", type=Path, help="a result that tells of the build")
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--table", type=Path, help="where the table goes; kept")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from warmup.inductor import connect

    runtime = connect().runtime(arguments.device)
    arguments.results.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp())
    table = arguments.table or scratch / "table.json"
    record: dict[str, Any] = {
        "name": arguments.name,
        "model": arguments.model,
        "dtype": arguments.dtype or "own",
        "seqlens": [int(size) for size in arguments.seqlens.split(",")],
        "machine": {**asdict(runtime), "cores": os.cpu_count(), "python": sys.version.split()[0]},
        "build": build_facts(arguments, table),
        "starts": [],
    }
    bundles = pack_bundles(arguments, table, runtime, scratch)
    record["bundles"] = {
        start: {name: value for name, value in one.items() if name != "path"}
        for start, one in bundles.items()
    }
    case = {
        "bundles": {start: one["path"] for start, one in bundles.items()},
        "model": arguments.model,
        "seqlens": record["seqlens"],
        "device": arguments.device,
        "dtype": arguments.dtype,
        "inputs": arguments.input,
        "table": str(table),
        "steady": arguments.steady,
        "mega": str(scratch / "mega.bin"),
    }
    once = arguments.once.split(",")
    for repeat in range(arguments.repeats):
        for start in arguments.starts.split(","):
            if repeat and start in once:
                continue
            result = run_start({**case, "start": start})
            record["starts"].append({"repeat": repeat, **result})
            target = arguments.results / f"{arguments.name}.json"
            target.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
            line = f"{start:20} {result['seconds']:8.2f} s {result['benchmarks']:5} benchmarks"
            line += f" {result['configs_timed']:4} configs timed"
            lookups = (
                f" {result['hits']} hits {result['misses']} misses" if "hits" in result else ""
            )
            if "kernels_compiled" in result:
                lookups += f" {result['kernels_compiled']} kernels compiled"
            sys.stdout.write(f"{line}{lookups} {result.get('steady_us', '')}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
