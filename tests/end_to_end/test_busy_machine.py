"""A build while other processes keep every core busy: it ends well, and says what it is worth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.core.rows import Rejection, Row
from warmup.table.schema import Table
from warmup.table.store import read, write

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
NET = f"{ROOT / 'tests' / 'programs' / 'models' / 'plain_script.py'}:Net"


@dataclass(frozen=True)
class Retried:
    """A table before and after `build --retry unstable`, the key to be retried, and the report."""

    before: Table
    after: Table
    key: str
    report: dict[str, Any]


@pytest.fixture(scope="module")
def busy_cores() -> Iterator[None]:
    """One process on each usable core that does nothing but compute, until the tests end."""
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in os.sched_getaffinity(0)
    ]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def retried(
    net: tuple[Path, dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    inherited: None,
    busy_cores: None,
) -> Retried:
    """A retry of a row that won since the library's time was refused, beside two other rows.

    One of them is stable; the other was won in the same way, and no bucket asks for it.
    """
    folder = tmp_path_factory.mktemp("busy")
    table = read(net[0])
    ((key, row),) = table.rows.items()
    stable, left = key.replace("m=8 ", "m=7 "), key.replace("m=8 ", "m=9 ")
    won = won_by_noise(row)
    before = replace(table, rows={key: won, left: won, stable: row})
    write(folder / "net.json", before)
    words = ("--model", NET, "--input", "x=[seqlen,32]:f32", "--seqlens", "8,24", "--device", "cpu")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    done = run_forked(
        *("-m", "warmup", "build", *words),
        *("--out", "net.json", "--retry", "unstable", "--json"),
        env={**os.environ, **caches},
        cwd=folder,
    )
    assert done.returncode == 1, done.stderr[-3000:]  # m=24 has no row, and gets none
    return Retried(before, read(folder / "net.json"), key, json.loads(done.stdout))


def won_by_noise(row: Row) -> Row:
    """Return *row* as a build stored it that had refused the time of the library's kernel."""
    refused = replace(
        row.evidence,
        library_us=None,
        rejected=((Rejection.IMPLAUSIBLE, 1),),
        flags=(),
        spread=0.0,
    )
    return Row(replace(row.winner, kwargs=()), refused)


def test_every_winner_has_a_measured_control(retried: Retried) -> None:
    """However busy the cores are, the library's kernel has a time, or is itself the winner."""
    evidence = retried.after.rows[retried.key].evidence
    assert evidence.library_us is not None
    assert evidence.time_us <= evidence.library_us


def test_only_the_flagged_row_that_was_asked_for_is_measured(retried: Retried) -> None:
    """Every other row is as it was, and no row is added."""
    assert [one["key"] for one in retried.report["problems"]] == [retried.key]
    kept = {key: row for key, row in retried.before.rows.items() if key != retried.key}
    assert {key: row for key, row in retried.after.rows.items() if key != retried.key} == kept


def test_the_load_of_other_processes_is_seen(retried: Retried) -> None:
    """The row was measured while others took more than a tenth of the CPUs, and is unstable."""
    machine = retried.report["machine"]
    assert (machine["measured"], machine["disturbed"], machine["waited_s"]) == (1, 1, 0)
    assert machine["worst_share"] > 0.1
    assert retried.key in retried.report["unstable"]


def test_the_library_is_kept_where_times_are_doubtful(retried: Retried, net: Any) -> None:
    """An unstable row has the library's kernel."""
    row = retried.after.rows[retried.key]
    assert row.evidence.time_us == row.evidence.library_us
    assert str(row.winner).startswith("aten::")
