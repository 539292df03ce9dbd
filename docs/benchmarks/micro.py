"""Small numbers of warmup itself: importing it, loading a large table, a lookup, a compiled call.

    python docs/benchmarks/micro.py [--results FOLDER]

Importing, loading and looking up are the best of five. What `warmup.compile` adds to a call,
finding the bucket, is measured against plain torch.compile, with a small model on the CPU, so that
nearly all of a call is the host's work, and five buckets. The plain function has a single artifact,
dynamic for `range` and static for the other policies, and is called at a size of the same bucket;
under `pad` that is a bucket's own size, where nothing is padded. Calls are timed in batches that
take turns, and the median of the differences of two batches in a row counts. Writes micro.json and
dispatch.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from driver import HERE, write

from warmup.core.events import Emitter
from warmup.core.rows import Family
from warmup.table import Table, store
from warmup.table.lookup import Lookup, OnMiss

ROWS = 10_000
WIDTH, BUCKETS, SIZE = 16, (16, 64, 256, 560, 1024), 64
BATCH, ROUNDS = 200, 200


def best_us(work: Callable[[], object], calls: int) -> float:
    """Return microseconds for one of so many calls, in the shortest of five runs."""
    return min(timeit.repeat(work, number=calls, repeat=5)) * 1e6 / calls


def import_ms() -> tuple[float, bool]:
    """Return what ``import warmup`` costs by ``-X importtime``, and whether it loaded torch."""
    command = [sys.executable, "-X", "importtime", "-c", "import warmup"]
    texts = [
        subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(5)
    ]
    lines = [re.search(r"\|\s+(\d+) \| warmup$", text, re.MULTILINE) for text in texts]
    milliseconds = [int(line[1]) / 1e3 for line in lines if line]
    return min(milliseconds), any(" torch\n" in text for text in texts)


def large_table() -> Table:
    """Return a table with ten thousand rows, all as a row of a shipped table."""
    shipped = store.read(HERE.parents[1] / "tables/nvidia-h200/products.bf16.json")
    row = next(row for row in shipped.rows.values() if row.winner.family is Family.TEMPLATE)
    key = "mm m={} n={} k=4096 bf16 a=row b=col out=bf16 | epilogue=gelu_tanh,mul(bf16[560,1280])"
    keys = (key.format(m, n) for m in range(1, 101) for n in range(1, ROWS // 100 + 1))
    return replace(shipped, rows=dict.fromkeys(keys, row))


def tables_and_lookups() -> dict[str, Any]:
    """Return what loading a table and a lookup take."""
    table = large_table()
    lookup = Lookup(table.rows, OnMiss.FALLBACK, Emitter([]))
    key, row = next(iter(table.rows.items()))

    def answer() -> None:
        lookup.find(key)
        lookup.hit(key, row.winner)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        store.write(path, table)
        return {
            "load_10000_rows_ms": round(best_us(lambda: store.read(path), 1) / 1e3, 1),
            "table_bytes": path.stat().st_size,
            "find_us": round(best_us(lambda: lookup.find(key), 1000), 2),
            "find_and_event_us": round(best_us(answer, 1000), 2),
        }


def added(policy: str) -> dict[str, float]:
    """Return the medians of a plain call and of a served call under *policy*, in microseconds."""
    import torch
    from torch import nn

    import warmup

    torch._dynamo.reset()
    x = torch.randn(SIZE, WIDTH)
    plain, first = torch.compile(nn.ReLU().eval(), dynamic=False), x.detach()
    if policy == "range":
        torch._dynamo.mark_dynamic(first, 0, min=17, max=SIZE)
    plain(first)
    settings = {"dims": {"input": {0: "n"}}, "buckets": BUCKETS, "independent": ("n",)}
    served = warmup.compile(nn.ReLU().eval(), policy=policy, table=None, **settings)
    served(x)
    times: dict[str, list[float]] = {"plain_us": [], "served_us": [], "added_us": []}
    for _ in range(ROUNDS):
        for name, call in (("plain_us", plain), ("served_us", served)):
            seconds = timeit.timeit(partial(call, x), number=BATCH)
            times[name].append(seconds * 1e6 / BATCH)
        times["added_us"].append(times["served_us"][-1] - times["plain_us"][-1])
    return {name: round(statistics.median(us), 2) for name, us in times.items()}


def main() -> None:
    """Write both documents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    folder = parser.parse_args().results
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    milliseconds, loads_torch = import_ms()
    importing = {"import_ms": round(milliseconds, 1), "import_loads_torch": loads_torch}
    write(folder / "micro.json", {"machine": machine, **importing, **tables_and_lookups()})
    import torch

    with torch.no_grad():
        policies = {policy: added(policy) for policy in ("range", "pad", "exact")}
    versions = {"torch": torch.__version__}
    write(folder / "dispatch.json", {"machine": machine | versions, "policies": policies})


if __name__ == "__main__":
    main()
