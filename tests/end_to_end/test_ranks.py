"""Two ranks under torchrun, on CPU with gloo: equal answers, no collective, failing alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "programs" / "serve_rank.py"
MODELS = ROOT / "tests" / "programs" / "models"
LIMIT_S = 300  # only ends a test that hangs

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="torchrun with gloo is tested on Linux"),
]


def launch(folder: Path, table: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the program on two ranks, with as many threads as the table was built with.

    torchrun would set one thread where nothing is said, and the table would be for another device.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    threads = {"OMP_NUM_THREADS": str(read(table).provenance.runtime.device.threads)}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return subprocess.run(
        [sys.executable, *launcher, str(PROGRAM), str(table), str(MODELS), "8"],
        env={**plain, **caches, **threads, **extra},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(net: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.json, a table of the plain script's model for 8 rows."""
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copy(net[0], folder)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What both ranks printed, by rank, and the events of both from one audit log."""
    log = folder / "audit.jsonl"
    done = launch(folder, folder / "net.json", WARMUP_AUDIT_LOG=str(log))
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [line.split("RESULT ")[1] for line in done.stdout.splitlines() if "RESULT " in line]
    results = sorted((json.loads(line) for line in printed), key=lambda result: result["rank"])
    assert [result["rank"] for result in results] == ["0", "1"]
    return results, [json.loads(line) for line in log.read_text().splitlines()]


Served = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def test_ranks_make_the_same_choices_without_a_collective(served: Served, folder: Path) -> None:
    """Each rank has the file's digest, and hits every row with the row's winner.

    No event is without its rank. The group's count of collectives stands from the install to the
    compiled answer; a barrier then moves it.
    """
    results, events = served
    table = read(folder / "net.json")
    digest = json.loads((folder / "net.json").read_text())["provenance"]["digest"]
    choices: dict[str, dict[str, str]] = {"0": {}, "1": {}}
    for event in events:
        if event["event"] == "lookup.hit":
            choices[event["rank"]][event["key"]] = event["winner"]
    assert {event.get("rank") for event in events} == {"0", "1"}
    for result in results:
        rank = result["rank"]
        assert (result["digest"], result["misses"], result["collectives"]) == (digest, {}, 0), rank
        assert result["control"] > 0, rank
        assert choices[rank] == {key: str(row.winner) for key, row in table.rows.items()}, rank


def test_a_damaged_copy_fails_its_rank_alone(folder: Path) -> None:
    """One TableFormatError, of the damaged file and with its rank; nobody hangs."""
    copy = folder / "copy.json"
    copy.write_text((folder / "net.json").read_text().replace('"seed": 0', '"seed": 1'))
    done = launch(folder, folder / "net.json", TABLE_OF_RANK_1=str(copy))
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    (number,) = (number for number, line in enumerate(lines) if "TableFormatError: " in line)
    assert "copy.json: not a valid table at /provenance/digest" in lines[number]
    assert "rank 1" in lines[number + 1]
