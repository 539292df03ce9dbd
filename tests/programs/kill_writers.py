"""Writers of one table that are killed at random moments: `kill_writers.py FOLDER ROUNDS SEED`.

In each round four processes do what a build does: they open the table, save one finished problem
after another by the build's own `Progress`, which appends each to the journal, and fold the journal
into the table after every few. Each notes a key in a file of its own once `save` has returned. Each
is killed by SIGKILL: a random time after a random number of saves, or, where this process holds it
up in its `os.write`, between two random bytes of a line of the journal. Prints a line of JSON: how
many keys were noted, which of them were lost, in how many rounds a torn line and a journal beside
the table were left, and what stands in the folder in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from warmup.core.files import LOCKS_FOLDER
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.core.trial import Tuned
from warmup.table import journal
from warmup.table.schema import Table
from warmup.table.store import check_writable, read
from warmup.tuning.progress import Progress
from warmup.tuning.report import Observer

WRITERS, MOST_SAVES, SAVES_OF_A_BUILD, LONGEST_S, GIVE_UP_S = 4, 4, 3, 0.02, 30.0
FOLDER, ROUNDS, SEED = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TABLE = FOLDER / "tables" / "t.json"
JOURNAL = journal.journal_path(TABLE)
KEY = "mm m={} n={} k={} f32 a=row b=row out=f32 | epilogue=none"
SHIPPED = Path(__file__).resolve().parents[2] / "tables/nvidia-h200/products.bf16.json"


def tuned(key: str) -> Tuned:
    winner = Winner(Family.TEMPLATE, "triton_mm", (("BLOCK_M", len(key)),), "0123456789abcdef")
    evidence = Evidence(time_us=1.5, library_us=None, runner_up=None, runner_up_us=None, tried=1)
    return Tuned(key, Row(winner, evidence), ())


def tear(chance: random.Random) -> None:
    """Let this process end by SIGKILL within a line: its next write has some of the bytes."""

    def write_a_part(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: chance.randrange(len(data))])
        os.kill(os.getpid(), signal.SIGKILL)

    journal._write_all = write_a_part


def write_rows(empty: Table, number: int, writer: int, tears_at: int) -> None:
    """Save rows until the process is killed, and note each key that is saved."""
    chance = random.Random(SEED + number * WRITERS + writer)  # noqa: S311  not for secrets
    with (FOLDER / f"saved{writer}").open("ab", buffering=0) as notes:
        for first in range(1, 10_000, SAVES_OF_A_BUILD):
            check_writable(TABLE)
            progress = Progress(path=TABLE, table=empty, replaces=False, observer=Observer())
            with progress:
                for count in range(first, first + SAVES_OF_A_BUILD):
                    if count == tears_at:
                        tear(chance)
                    key = KEY.format(number + 1, writer + 1, count)
                    progress.save(tuned(key))
                    notes.write(key.encode() + b"\n")


def size_of_notes(writer: int) -> int:
    """Return how many keys a writer has noted, over all rounds."""
    with contextlib.suppress(FileNotFoundError):
        return (FOLDER / f"saved{writer}").read_bytes().count(b"\n")
    return 0


def run_round(empty: Table, number: int, chance: random.Random) -> None:
    """Start the writers, and kill each when it has saved so many rows, a moment later."""
    wanted = [size_of_notes(writer) + chance.randint(0, MOST_SAVES) for writer in range(WRITERS)]
    tears_at = chance.randint(1, MOST_SAVES)
    writers = []
    for writer in range(WRITERS):
        if (process := os.fork()) == 0:
            try:
                write_rows(empty, number, writer, tears_at if writer == 0 else 0)
            finally:
                os._exit(1)
        writers.append(process)
    begun, alive = time.monotonic(), set(range(WRITERS))
    while alive:
        late = time.monotonic() - begun > GIVE_UP_S
        ready = {writer for writer in alive if late or size_of_notes(writer) >= wanted[writer]}
        if 0 in alive and os.waitid(os.P_PID, writers[0], os.WEXITED | os.WNOHANG | os.WNOWAIT):
            ready.add(0)  # it has torn a line
        time.sleep(chance.uniform(0, LONGEST_S))
        for writer in ready:
            os.kill(writers[writer], signal.SIGKILL)
            _, status = os.waitpid(writers[writer], 0)
            assert os.WIFSIGNALED(status), "a writer ended by itself"
        alive -= ready


def main() -> None:
    chance = random.Random(SEED)  # noqa: S311  not for secrets
    empty = replace(read(SHIPPED), rows={})
    torn = journals = 0
    for number in range(ROUNDS):
        run_round(empty, number, chance)
        if JOURNAL.exists():
            journals += 1
            torn += not JOURNAL.read_bytes().endswith(b"\n")
        if TABLE.exists():
            read(TABLE)  # files that are not valid raise
    saved = {
        line for notes in FOLDER.glob("saved*") for line in notes.read_text().splitlines() if line
    }
    begun = time.monotonic()
    check_writable(TABLE)  # what the next build does first
    waited = time.monotonic() - begun
    lost = sorted(saved - set(read(TABLE).rows))
    left = sorted(path.name for path in TABLE.parent.iterdir() if path.name != LOCKS_FOLDER)
    facts = {"saved": len(saved), "lost": lost, "torn": torn, "journals": journals, "left": left}
    sys.stdout.write(json.dumps({**facts, "waited": waited}) + "\n")


main()
