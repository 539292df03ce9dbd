"""What a start and a build cost as the model gets more layers and the server more buckets.

    python docs/benchmarks/growth.py --width small --results growth-cpu.json
    python docs/benchmarks/growth.py --width full --limit 560 --resume ...

Equal Llama-shaped layers. A cell is one start of a server, from the table or in default mode, or
one build, in a process of its own with empty caches. Cells run in order of worth and each is
written when it is done; the cell that is under way when the *limit* is over is ended and not
written, and --resume goes on with what lacks. The table of the starts is completed for the buckets
and layers of the next cell; from eight layers on all ask for the same rows. The kind
``table-sources-anew`` is a start from the table in which C++ sources are written as torch does.

Of a start: seconds from the start of the process to the last of the first outputs, and of them
importing, loading the model, compiling (dynamo's own sum) and the rest of the first calls; the
largest resident memory of the process, and of it and its compile workers together (looked at five
times a second; what they share counts in each); device memory; the processor's seconds of the
process and of the compilers it started; and what the caches hold afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from driver import HERE, add_options, ask_fresh, begin, now, numbers, say, write

from warmup.core.child_process import ChildError, ChildTimeoutError

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
    *(("table-sources-anew", layers, buckets) for buckets in (1, 5, 20) for layers in (2, 8, 32)),
)
_SECONDS_BETWEEN_LOOKS = 0.2
_MOST_LAYERS_TUNED = 8  # more ask for nothing else

Cell = tuple[str, int, int]


def __getattr__(name: str) -> Callable[[], Any]:
    """Return what makes the model called ``small_32``: thirty-two layers of the width `small`."""
    width, _, layers = name.partition("_")
    if width not in WIDTHS or not layers.isdigit():
        raise AttributeError(name)
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    from llama_block import LlamaBlocks

    return functools.partial(LlamaBlocks, **WIDTHS[width], layers=int(layers))


def family_bytes(root: int) -> int:
    """Return the resident bytes of process *root* and of what it started."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    family, before = {root}, 0
    while len(family) > before:
        before = len(family)
        family |= {pid for pid, fields in stats.items() if int(fields[1]) in family}
    pages = sum(int(stats[pid][21]) for pid in family & stats.keys())
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def watching(root: int) -> Iterator[list[int]]:
    """Yield the resident bytes of process *root* and of what it started, at each look so far."""
    resident, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            resident.append(family_bytes(root))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield resident
    finally:
        over.set()
        looker.join()


def run_cell(cell: Cell, asked: argparse.Namespace, until: float) -> dict[str, Any]:
    """Run one cell from empty caches and return what was measured.

    Raises:
        ChildTimeoutError: it had not ended at *until*.
        ChildError: it failed.
    """
    kind, layers, buckets = cell
    case: dict[str, Any] = {
        "model": f"{HERE / 'growth.py'}:{asked.width}_{layers}",
        "inputs": [f"hidden_states=[1,seqlen,{WIDTHS[asked.width]['hidden']}]:bf16"],
        "seqlens": sorted(asked.sizes[:buckets]),
        "device": asked.device,
        "spawned": time.monotonic(),
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        what = "start"
        if kind in {"build", "complete"}:
            what = "build"
            case["out"] = asked.table if kind == "complete" else f"{folder}/table.json"
        else:
            case |= {"kind": kind, "table": asked.table}
        before_s = _cpu_seconds()
        with begin(folder) as remote, watching(remote.pid) as resident:
            left = max(until - time.monotonic(), 0)
            answer = dict(remote.ask({"do": what, **case}, left))
        answer["cpu_seconds"] = round(_cpu_seconds() - before_s, 3)
        (Path(folder) / "log").unlink()
        files = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
    if what == "start":
        answer["install_seconds"] = answer["install_seconds"] or answer["import_seconds"]
        answer["import_seconds"] = answer.pop("torch_seconds")  # inductor's is in the line above
        answer["device_bytes"] = answer.pop("peak_bytes")
    own = {"cache_bytes": sum(files), "resident_bytes_with_workers": max(resident)}
    return {**answer, **own, "kind": kind, "layers": layers, "buckets": buckets}


def _cpu_seconds() -> float:
    """Return the processor's seconds of all processes that ended, compilers among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(asked: argparse.Namespace) -> None:
    """Run the cells that lack, and write the document after each."""
    until = time.monotonic() + asked.limit
    document: dict[str, Any] = {
        "width": {asked.width: WIDTHS[asked.width]},
        "sizes": asked.sizes,
        "machine": ask_fresh("machine", device=asked.device),
        "built": [],
        "cells": [],
    }
    if asked.resume and asked.results.exists():
        known = json.loads(asked.results.read_text(encoding="utf-8"))
        if any(known[name] != document[name] for name in ("machine", "width")):
            raise SystemExit(f"{asked.results} is of another machine, runtime or width")
        document = known
    done = {(cell["kind"], cell["layers"], cell["buckets"]) for cell in document["cells"]}
    for kind, layers, buckets in CELLS:
        if kind not in asked.kinds or layers not in asked.layers or buckets not in asked.buckets:
            continue
        if (kind, layers, buckets) in done:
            continue
        created = {"created": now()}
        try:
            tuned = [min(layers, _MOST_LAYERS_TUNED), buckets]
            if kind.startswith("table") and tuned not in document["built"]:
                run_cell(("complete", *tuned), asked, until)
                document["built"].append(tuned)
            cell = run_cell((kind, layers, buckets), asked, until)
        except ChildTimeoutError:
            say("the limit is over; --resume goes on")
            return
        except ChildError as error:  # not written: --resume tries it again
            say(f"{kind}, {layers} layers, {buckets} buckets failed: {error}")
            continue
        document["cells"].append(created | cell)
        write(asked.results, document)
        shown = ("seconds", "process_seconds", "compile_seconds", "benchmarks", "hits", "misses")
        words = ", ".join(f"{name} {cell[name]}" for name in shown if name in cell)
        say(f"{kind}, {layers} layers, {buckets} buckets: {words}")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, "device", "limit", "results")
    parser.add_argument("--width", choices=WIDTHS, default="small")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default="table,default,build")
    parser.add_argument("--layers", type=numbers, default="2,8,32")
    parser.add_argument("--buckets", type=numbers, default="1,5,20", help="of the starts")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="of the buckets")
    parser.add_argument("--table", default="growth-table.json", help="where the starts' table is")
    parser.add_argument("--resume", action="store_true", help="run the cells that lack in RESULTS")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
