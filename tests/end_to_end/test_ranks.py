"""Two ranks under torchrun, on CPU with gloo: equal answers, no collective, failing alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from own_processes import MODELS, PROGRAMS, Built, Done, environment

from warmup.table.store import read

LIMIT_S = 300  # only ends a test that hangs

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="torchrun with gloo is tested on Linux"),
]


def launch(folder: Path, table: Path, **extra: str) -> Done:
    """Run the program on two ranks, with as many threads as the table was built with."""
    # torchrun would set one thread where nothing is said, and the table would be for another
    # device.
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    threads = {"OMP_NUM_THREADS": str(read(table).provenance.runtime.device.threads)}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    program = (str(PROGRAMS / "serve_rank.py"), str(table), str(MODELS), "8")
    return subprocess.run(
        [sys.executable, *launcher, *program],
        env={**environment(), **caches, **threads, **extra},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_ranks_make_the_same_choices_without_a_collective(net: Built, tmp_path: Path) -> None:
    """Each rank has the file's digest, and hits every row with the row's winner.

    No event is without its rank. The group's count of collectives stands from the install to the
    compiled answer; a barrier then moves it.
    """
    log = tmp_path / "audit.jsonl"
    done = launch(tmp_path, net[0], WARMUP_AUDIT_LOG=str(log))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if "RESULT " in line]
    results = {
        each["rank"]: each for each in (json.loads(line.split("RESULT ")[1]) for line in lines)
    }
    assert results.keys() == {"0", "1"}
    events = [json.loads(line) for line in log.read_text().splitlines()]
    digest = json.loads(net[0].read_text())["provenance"]["digest"]
    assert {event.get("rank") for event in events} == {"0", "1"}
    for rank, result in results.items():
        choices = {
            event["key"]: event["winner"]
            for event in events
            if (event["event"], event["rank"]) == ("lookup.hit", rank)
        }
        assert (result["digest"], result["misses"], result["collectives"]) == (digest, {}, 0), rank
        assert result["control"] > 0, rank
        assert choices == {key: str(row.winner) for key, row in read(net[0]).rows.items()}, rank


def test_a_damaged_copy_fails_its_rank_alone(net: Built, tmp_path: Path) -> None:
    """One TableFormatError, of the damaged file and with its rank; nobody hangs."""
    copy = tmp_path / "copy.json"
    copy.write_text(net[0].read_text().replace('"seed": 0', '"seed": 1'))
    done = launch(tmp_path, net[0], TABLE_OF_RANK_1=str(copy))
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    (number,) = (number for number, line in enumerate(lines) if "TableFormatError: " in line)
    assert "copy.json: not a valid table at /provenance/digest" in lines[number]
    assert "rank 1" in lines[number + 1]
