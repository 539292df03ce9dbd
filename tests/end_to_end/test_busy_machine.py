"""A build while other processes keep every core busy: it ends well, and says what it is worth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, warmup_in

from warmup.core.rows import Rejection, Row
from warmup.table.store import read, write

pytestmark = pytest.mark.nightly

NET = f"{MODELS / 'plain_script.py'}:Net"


@pytest.fixture
def busy_cores() -> Iterator[None]:
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in os.sched_getaffinity(0)
    ]
    yield
    for process in busy:
        process.kill()
        process.wait()


def won_by_noise(row: Row) -> Row:
    """Return *row* as a build stored it that had refused the time of the library's kernel."""
    refused = ((Rejection.IMPLAUSIBLE, 1),)
    changes: dict[str, Any] = {"library_us": None, "rejected": refused, "flags": (), "spread": 0.0}
    return Row(replace(row.winner, kwargs=()), replace(row.evidence, **changes))


@pytest.mark.usefixtures("busy_cores")
def test_a_retry_on_a_busy_machine_keeps_the_librarys_kernel(
    net: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Of a row that won since the library's time was refused; the other rows stay as they were.

    However busy the cores are, the library's kernel has a time. The load is seen, and the row is
    unstable.
    """
    table = read(net[0])
    ((key, row),) = table.rows.items()
    stable, left = key.replace("m=8 ", "m=7 "), key.replace("m=8 ", "m=9 ")  # no bucket asks
    rows = {left: won_by_noise(row), stable: row}
    write(tmp_path / "net.json", replace(table, rows={key: won_by_noise(row), **rows}))
    words = ("--model", NET, "--input", "x=[seqlen,32]:f32", "--seqlens", "8,24", "--device", "cpu")
    retry = ("--out", "net.json", "--retry", "unstable", "--json")
    done = warmup_in(tmp_path, "build", *words, *retry, code=1)  # m=24 has no row, and gets none
    report, after = json.loads(done.stdout), read(tmp_path / "net.json").rows
    assert [one["key"] for one in report["problems"]] == [key]
    assert {one: row for one, row in after.items() if one != key} == rows
    machine = report["machine"]
    assert (machine["measured"], machine["disturbed"], machine["waited_s"]) == (1, 1, 0)
    assert machine["worst_share"] > 0.1
    assert key in report["unstable"]
    assert after[key].evidence.library_us is not None
    assert after[key].evidence.time_us == after[key].evidence.library_us
    assert str(after[key].winner).startswith("aten::")
