"""What a start and a build cost as the model gets more layers and the server more buckets.

    python docs/benchmarks/growth.py --width small --results growth.json --table growth-table.json
    python docs/benchmarks/growth.py --width full --limit 560 --resume ...

Equal Llama-shaped layers. A cell is one start of a server, from the table or in default mode, or
one build, in a process of its own with empty caches. Cells run in order of worth and each is
written when it is done; the one that is under way when the *limit* is over is ended and not
written, and --resume goes on with what lacks. The table of the starts is completed for the buckets
and layers of the next cell; from eight layers on all ask for the same rows.

Of a start: seconds from the start of the process to the last of the first outputs, and of them
importing, loading the model, compiling (dynamo's own sum) and the rest of the first calls; the
largest resident memory of the process, and of it and its compile workers together (looked at five
times a second; what they share counts in each); device memory; and what the caches hold afterwards.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
WIDTHS: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 224},
    "small": {"hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 448},
    "full": {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336},
}
# The sizes of the first 1, 5 and 20 buckets are among those of the shipped table, but for six.
SIZES = (
    *(560, 16, 256, 1024, 2048, 1, 2, 4, 8, 32, 64, 128, 512, 4096),
    *(96, 192, 384, 768, 1536, 3072),
)
CELLS = (
    *(("table", 8, 5), ("default", 8, 5), ("table", 2, 5), ("table", 32, 5)),
    *(("default", 2, 5), ("default", 32, 5), ("build", 2, 5), ("build", 32, 5)),
    *(("table", 8, 1), ("table", 8, 20), ("default", 8, 1), ("default", 8, 20)),
    *(("table", 2, 1), ("table", 32, 1), ("default", 2, 1), ("default", 32, 1)),
    *(("table", 2, 20), ("default", 2, 20), ("build", 2, 1), ("build", 32, 1)),
    *(("table", 32, 20), ("default", 32, 20)),
)
_SECONDS_BETWEEN_LOOKS = 0.2
_MOST_LAYERS_TUNED = 8  # more ask for nothing else
_FACT = re.compile(r"^(PPid|VmRSS|VmHWM):\s+(\d+)", re.MULTILINE)

Cell = tuple[str, int, int]


def __getattr__(name: str) -> Callable[[], Any]:
    """Return what makes the model called ``small_32``: thirty-two layers of the width `small`."""
    width, _, layers = name.partition("_")
    if width not in WIDTHS or not layers.isdigit():
        raise AttributeError(name)
    sys.path.insert(0, str(EXAMPLES))
    from llama_block import LlamaBlocks

    return functools.partial(LlamaBlocks, **WIDTHS[width], layers=int(layers))


def inputs_of(width: str) -> str:
    """Return the input of a model of *width* as it is spelled on the command line."""
    return f"hidden_states=[1,seqlen,{WIDTHS[width]['hidden']}]:bf16"


# -- in the process of one start ---------------------------------------------------------------


def serve(case: dict[str, Any]) -> dict[str, Any]:
    """Start one server, call every bucket once, and return what it took."""
    begin = time.time()
    import torch
    from start import Watch, compile_all, device_of, load, lookups, phase_seconds

    import warmup

    torch.manual_seed(0)
    imported = time.time()
    watch, handle = Watch(), None
    watch.begin()
    if case["start"] == "table":
        handle = warmup.install(case["table"])
    installed = time.time()
    device = device_of(case["device"])
    model, inputs = load(case, device)
    loaded = time.time()
    if device.type == "cuda":  # what loading took on the device is the model's own affair
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # One artifact for each bucket of one model; dynamo gives up at 8.
    torch._dynamo.config.recompile_limit = len(inputs) + 1
    with torch.no_grad():
        compiled = torch.compile(model, dynamic=False)
        by_bucket = compile_all(compiled, inputs, device)
    ended = time.time()
    compiling = torch._dynamo.utils.compile_times(repr="csv", aggregate=True)
    sums = dict(zip(*compiling, strict=True))
    compile_s = float(sums["_compile.compile_inner"])
    result = {
        "process_seconds": round(ended - case["spawned"], 3),
        "import_seconds": round(imported - begin, 3),
        "install_seconds": round(installed - imported, 3),
        "load_seconds": round(loaded - installed, 3),
        "compile_seconds": round(compile_s, 3),
        "first_call_seconds": round(sum(by_bucket) - compile_s, 3),
        "seconds_by_bucket": by_bucket,
        "phase_seconds": phase_seconds(),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "weight_bytes": sum(one.numel() * one.itemsize for one in model.parameters()),
    }
    if device.type == "cuda":
        result["device_bytes"] = torch.cuda.max_memory_allocated()
        result["device_reserved_bytes"] = torch.cuda.max_memory_reserved()
    result |= watch.end()
    return result | (lookups(handle) if handle is not None else {})


# -- in the process that runs the others -------------------------------------------------------


class TooLateError(Exception):
    """The limit is over."""


class FailedError(Exception):
    """A process failed. Argument: what it said."""


def family_bytes(root: int) -> tuple[int, int]:
    """Return the largest resident bytes of process *root*, and those of its family now."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    largest = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                said = dict(_FACT.findall((folder / "status").read_text()))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            parents[int(folder.name)] = int(said["PPid"])
            resident[int(folder.name)] = int(said.get("VmRSS", 0)) * 1024
            if int(folder.name) == root:
                largest = int(said.get("VmHWM", 0)) * 1024

    def descends(pid: int) -> bool:
        while pid not in (0, 1, root):
            pid = parents.get(pid, 0)
        return pid == root

    return largest, sum(size for pid, size in resident.items() if descends(pid))


def run_apart(command: list[str], folder: str, until: float) -> tuple[str, dict[str, float]]:
    """Run *command* with all caches in *folder*; return what it printed, and what it took.

    Raises:
        TooLateError: it had not ended at *until*, and was ended.
        FailedError: it failed.
    """
    from run import environment

    alone = together = 0
    over = threading.Event()
    before = cpu_seconds()
    with subprocess.Popen(
        command,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:

        def look() -> None:
            nonlocal alone, together
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                own, family = family_bytes(process.pid)
                alone, together = max(alone, own), max(together, family)

        looker = threading.Thread(target=look)
        looker.start()
        try:
            said, complained = process.communicate(timeout=max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired as error:
            raise TooLateError from error
        finally:
            over.set()
            looker.join()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise FailedError(complained[-3000:])
    return said, {
        "resident_bytes": alone,
        "resident_bytes_with_workers": together,
        "cpu_seconds": round(cpu_seconds() - before, 2),
    }


def cpu_seconds() -> float:
    """Return the processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command_of_build(settings: argparse.Namespace, layers: int, sizes: list[int]) -> list[str]:
    """Return the command that builds a table for *sizes* of so many layers, without its file."""
    return [
        *(sys.executable, "-m", "warmup", "build", "--json", "--device", settings.device),
        *("--model", f"{HERE / 'growth.py'}:{settings.width}_{layers}"),
        *("--input", inputs_of(settings.width), "--seqlens", ",".join(map(str, sizes))),
    ]


def run_cell(cell: Cell, settings: argparse.Namespace, until: float) -> dict[str, Any]:
    """Run one cell from empty caches and return what was measured."""
    kind, layers, buckets = cell
    sizes = sorted(SIZES[:buckets])
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        if kind == "build":
            command = command_of_build(settings, layers, sizes)
            said, memory = run_apart([*command, "--out", f"{folder}/table.json"], folder, until)
            found = facts_of_build(json.loads(said))
        else:
            case = {
                "model": f"{HERE / 'growth.py'}:{settings.width}_{layers}",
                "inputs": [inputs_of(settings.width)],
                "seqlens": sizes,
                "start": kind,
                "table": str(settings.table),
                "device": settings.device,
                "spawned": time.time(),
            }
            command = [sys.executable, __file__, "--one", json.dumps(case)]
            said, memory = run_apart(command, folder, until)
            found = json.loads(said.rpartition("RESULT ")[2])
        found["seconds"] = round(time.perf_counter() - begin, 3)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        cache = {"cache_bytes": sum(map(size_of, files)), "cache_files": len(files)}
    return {"kind": kind, "layers": layers, "buckets": buckets, **found, **memory, **cache}


def complete_table(settings: argparse.Namespace, layers: int, buckets: int, until: float) -> None:
    """Tune what the table of the starts lacks for so many layers and buckets."""
    command = command_of_build(settings, layers, sorted(SIZES[:buckets]))
    with tempfile.TemporaryDirectory() as folder:
        run_apart([*command, "--out", str(settings.table)], folder, until)


def facts_of_build(report: dict[str, Any]) -> dict[str, Any]:
    """Return how much a build did, from what ``warmup build --json`` printed."""
    candidates = [one for problem in report["problems"] for one in problem["candidates"]]
    return {
        "rows": report["rows"],
        "problems": len(report["problems"]),
        "candidates": len(candidates),
        "bucket_seconds": [round(bucket["seconds"], 3) for bucket in report["buckets"]],
        "left_out": [bucket["left_out"] for bucket in report["buckets"]],
    }


def size_of(path: Path) -> int:
    """Return the size of a file, 0 of one that a worker removed meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def lines_of(cells: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a short table of *cells*."""
    yield (
        f"{'kind':8}{'layers':>7}{'buckets':>8}{'seconds':>9}{'of CPU':>8}{'import':>8}"
        f"{'compile':>9}{'calls':>7}{'MiB':>7}{'+workers':>9}{'device':>8}{'cache':>7}"
        f"{'hits':>6}{'misses':>7}"
    )
    for cell in cells:
        mib = {key: value / 2**20 for key, value in cell.items() if key.endswith("_bytes")}
        workers = cell["resident_bytes_with_workers"] / 2**20
        seconds = cell.get("process_seconds", cell["seconds"])
        yield (
            f"{cell['kind']:8}{cell['layers']:7}{cell['buckets']:8}{seconds:9.1f}"
            f"{cell['cpu_seconds']:8.1f}"
            f"{cell.get('import_seconds', 0):8.1f}{cell.get('compile_seconds', 0):9.1f}"
            f"{cell.get('first_call_seconds', 0):7.1f}{mib['resident_bytes']:7.0f}{workers:9.0f}"
            f"{mib.get('device_bytes', 0):8.0f}{mib['cache_bytes']:7.1f}"
            f"{cell.get('hits', 0):6}{cell.get('misses', 0):7}"
        )


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    """Run the cells that lack, and write the record after each."""
    from warmup.inductor import connect

    until = time.monotonic() + settings.limit
    wanted = [
        cell
        for cell in CELLS
        if cell[0] in settings.kinds
        and cell[1] in settings.layers
        and cell[2] in (*settings.buckets, *((2,) if cell[0] == "build" else ()))
    ]
    runtime = connect().runtime(settings.device)
    machine = {**asdict(runtime), "cores": os.cpu_count(), "python": sys.version.split()[0]}
    record: dict[str, Any] = {
        "width": {settings.width: WIDTHS[settings.width]},
        "sizes": SIZES,
        "machine": machine,
        "built": [],
        "cells": [],
    }
    if settings.resume and settings.results.exists():
        record = json.loads(settings.results.read_text(encoding="utf-8"))
        if record["machine"] != machine or list(record["width"]) != [settings.width]:
            raise SystemExit(f"{settings.results} is of another machine, runtime or width")
    known = {(one["kind"], one["layers"], one["buckets"]) for one in record["cells"]}
    try:
        for cell in wanted:
            if cell in known:
                continue
            try:
                tuned = [min(cell[1], _MOST_LAYERS_TUNED), cell[2]]
                if cell[0] == "table" and tuned not in record["built"]:
                    complete_table(settings, *tuned, until)
                    record["built"].append(tuned)
                begun = {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
                record["cells"].append({**begun, **run_cell(cell, settings, until)})
            except FailedError as error:  # not written: --resume tries it again
                sys.stderr.write(f"{cell} failed:\n{error}\n")
                continue
            text = json.dumps(record, indent=1, sort_keys=True) + "\n"
            settings.results.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{list(lines_of(record['cells'][-1:]))[1]}\n")
    except TooLateError:
        sys.stderr.write("the limit is over; --resume goes on\n")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", help="a case: be the server (what the driver starts)")
    parser.add_argument("--width", choices=WIDTHS, default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default="table,default,build")
    parser.add_argument("--layers", type=numbers, default="2,8,32")
    parser.add_argument("--buckets", type=numbers, default="1,5,20", help="of the starts")
    parser.add_argument("--table", type=Path, default=Path("growth-table.json"))
    parser.add_argument("--results", type=Path, default=Path("growth.json"))
    parser.add_argument("--limit", type=float, default=24 * 3600, help="seconds")
    parser.add_argument("--resume", action="store_true")
    settings = parser.parse_args()
    if settings.one:
        sys.stdout.write(f"RESULT {json.dumps(serve(json.loads(settings.one)))}\n")
        return
    sys.stdout.write("\n".join(lines_of(measure(settings)["cells"])) + "\n")


def numbers(text: str) -> list[int]:
    """Return the numbers in ``2,8,32``."""
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    main()
