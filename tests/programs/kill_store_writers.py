"""Writers of one store, killed at random: `kill_store_writers.py FOLDER ROUNDS SEED`.

In each round three processes add one table after another, merge files and, one of them, collect
garbage. Each notes a key in a file of its own once `add` has returned, and is killed by SIGKILL
after a random time. Prints a line of JSON: how many keys were noted, which of them were lost, and
how many files are damaged.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.table import Table
from warmup.table.row_store import RowStore
from warmup.table.row_store import row_store as module
from warmup.table.row_store.served_versions import ServedVersions
from warmup.table.row_store.sweep import sweep
from warmup.table.row_store.table_view import view_like
from warmup.table.store import read

WRITERS, LONGEST_S = 3, 0.3
FOLDER, ROUNDS, SEED = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
KEY = "mm m={} n={} k={} f32 a=row b=row out=f32 | epilogue=none"
SHIPPED = Path(__file__).resolve().parents[2] / "tables/nvidia-h200/products.bf16.json"
EVIDENCE = Evidence(time_us=1.5, library_us=None, runner_up=None, runner_up_us=None, tried=1)


def write_rows(empty: Table, number: int, writer: int) -> None:
    """Add tables until the process is killed, and note the key of each that was added."""
    module._MOST_SEGMENTS = 4  # files are merged all the time
    store = RowStore(str(FOLDER / "rows"))
    with (FOLDER / f"noted{writer}").open("ab", buffering=0) as notes:
        for count in range(1, 10_000):
            key = KEY.format(number + 1, writer + 1, count)
            winner = Winner(Family.TEMPLATE, "triton_mm", (("BLOCK_M", count),), "0123456789abcdef")
            store.add(replace(empty, rows={key: Row(winner, EVIDENCE)}))
            notes.write(key.encode() + b"\n")
            if writer == 0 and count % 5 == 0:
                sweep(store, ServedVersions())


def run_round(empty: Table, number: int, chance: random.Random) -> None:
    """Start the writers, and kill each after a random time."""
    writers = []
    for writer in range(WRITERS):
        if (process := os.fork()) == 0:
            try:
                write_rows(empty, number, writer)
            finally:
                os._exit(1)
        writers.append(process)
    for process in writers:
        time.sleep(chance.uniform(0.05, LONGEST_S))
        os.kill(process, signal.SIGKILL)
    for process in writers:
        os.waitpid(process, 0)


def main() -> None:
    """Run the rounds, and print what was noted and what was lost."""
    shipped = read(SHIPPED)
    empty, chance = replace(shipped, rows={}), random.Random(SEED)  # noqa: S311  moments to kill
    for number in range(ROUNDS):
        run_round(empty, number, chance)
    noted = [
        line
        for writer in range(WRITERS)
        for line in (FOLDER / f"noted{writer}").read_text().splitlines()
    ]
    store = RowStore(str(FOLDER / "rows"))
    damaged = sum(len(found.damaged) for found in store.load_all())
    found = view_like(store, empty, every=True).table.rows
    lost = [key for key in noted if key not in found]
    sys.stdout.write(json.dumps({"noted": len(noted), "lost": len(lost), "damaged": damaged}))


if __name__ == "__main__":
    main()
