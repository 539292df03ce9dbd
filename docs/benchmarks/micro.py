"""Small numbers of warmup itself: importing, large tables, a lookup, installing, a compiled call.

    python docs/benchmarks/micro.py [--results FOLDER]

Importing, loading and looking up are the best of five. Loading a table of 100,000 rows, with the
peak of the process's memory, and `show`, `diff` and `merge` of such tables are each the best of
three processes. Installing is timed in a process that has compiled before, and so is what an
installed table adds to a compiled call: batches take turns, with the table and without.

What `warmup.compile` adds to a call, finding the bucket, is measured against plain torch.compile,
with a small model on the CPU, so that nearly all of a call is the host's work, and five buckets.
The plain function has a single artifact, dynamic for `range` and static for the other policies, and
is called at a size of the same bucket; under `pad` that is a bucket's own size, where nothing is
padded. Calls are timed in batches that take turns, and the median of the differences of two batches
in a row counts. Writes micro.json and dispatch.json.
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
import time
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

ROWS, MANY_ROWS = 10_000, 100_000
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


def large_table(count: int = ROWS) -> Table:
    """Return a table with *count* rows, all as a row of a shipped table."""
    shipped = store.read(HERE.parents[1] / "tables/nvidia-h200/products.bf16.json")
    row = next(row for row in shipped.rows.values() if row.winner.family is Family.TEMPLATE)
    key = "mm m={} n={} k=4096 bf16 a=row b=col out=bf16 | epilogue=gelu_tanh,mul(bf16[560,1280])"
    keys = (key.format(m, n) for m in range(1, 101) for n in range(1, count // 100 + 1))
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


def best_process(*words: str) -> tuple[float, int]:
    """Return the seconds and the peak MB of Python with *words*, the least of three processes."""
    seconds, megabytes = [], []
    for _ in range(3):
        begun = time.perf_counter()
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - begun)
        process.returncode = os.waitstatus_to_exitcode(status)
        megabytes.append(usage.ru_maxrss * 1024 // 10**6)
        assert process.returncode in {0, 1}, words
    return round(min(seconds), 2), min(megabytes)


def write_many(path: Path, other: Path) -> None:
    """Write two large tables that differ in a row; print the seconds for writing the first."""
    table = large_table(MANY_ROWS)
    begun = time.perf_counter()
    store.write(path, table)
    sys.stdout.write(f"{time.perf_counter() - begun}\n")
    store.write(other, replace(table, rows=dict(list(table.rows.items())[1:])))


def many_rows() -> dict[str, Any]:
    """Return what a table of a hundred thousand rows takes.

    The tables are written by another process: Linux counts the memory of the process that starts
    another one in the other's peak.
    """
    load = "import sys, time; from warmup.table.store import read; begun = time.perf_counter(); "
    load += "read(sys.argv[1]); print(time.perf_counter() - begun)"
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "large.json", Path(folder) / "other.json"
        words = [sys.executable, __file__, "--write-many", path, other]
        written = subprocess.run(words, capture_output=True, text=True, check=True)
        found["write_s"] = round(float(written.stdout), 2)
        found["bytes"] = path.stat().st_size
        runs = [
            subprocess.run(
                [sys.executable, "-c", load, path], capture_output=True, text=True, check=True
            )
            for _ in range(3)
        ]
        found["load_s"] = round(min(float(run.stdout) for run in runs), 2)
        found["load_mb"] = best_process("-c", load, str(path))[1]
        commands = {
            "show": ("show", path),
            "diff": ("diff", path, other),
            "merge": ("merge", path, other, "-o", Path(folder) / "merged.json"),
        }
        for name, words in commands.items():
            taken = best_process("-m", "warmup", *map(str, words))
            found[f"{name}_s"], found[f"{name}_mb"] = taken
    return found


def installing() -> dict[str, float]:
    """Return what installing takes, and what an installed table adds to a compiled call."""
    import torch
    from torch import nn

    import warmup
    from warmup.inductor import connect
    from warmup.table import Provenance
    from warmup.table.policy import PolicyOptions, choose_policy

    torch._dynamo.reset()
    inductor = connect()
    policy = choose_policy(PolicyOptions(), "cpu", inductor.quiet_switches())
    rows = dict(list(large_table().rows.items())[:100])
    table = Table(
        Provenance(inductor.runtime("cpu"), "0.1.0", "2026-01-01T00:00:00Z"), policy, rows
    )
    call, x = torch.compile(nn.ReLU().eval(), dynamic=False), torch.randn(SIZE, WIDTH)
    call(x)
    install_ms, differences = [], []
    for _ in range(ROUNDS // 2):
        seconds = timeit.timeit(partial(call, x), number=BATCH)
        begun = time.perf_counter()
        handle = warmup.install(table)
        install_ms.append((time.perf_counter() - begun) * 1e3)
        differences.append(timeit.timeit(partial(call, x), number=BATCH) - seconds)
        handle.close()
    added_us = statistics.median(differences) * 1e6 / BATCH
    return {"install_ms": round(min(install_ms), 2), "installed_added_us": round(added_us, 2)}


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
    parser.add_argument("--write-many", type=Path, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write_many:
        write_many(*given.write_many)
        return
    folder = given.results
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    many = many_rows()  # first, while this process is small
    milliseconds, loads_torch = import_ms()
    importing = {"import_ms": round(milliseconds, 1), "import_loads_torch": loads_torch}
    small = tables_and_lookups()
    import torch

    with torch.no_grad():
        installed = installing()
        numbers = {**importing, **small, **installed, "rows_100000": many}
        write(folder / "micro.json", {"machine": machine, **numbers})
        policies = {policy: added(policy) for policy in ("range", "pad", "exact")}
    versions = {"torch": torch.__version__}
    write(folder / "dispatch.json", {"machine": machine | versions, "policies": policies})


if __name__ == "__main__":
    main()
