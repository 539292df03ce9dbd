"""Same bits on every start from one table, on a CPU: hashes of outputs over empty caches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import ROOT, Built, answer_of, python_in, run_python

from warmup.core.rows import Family, Winner
from warmup.table.codec import digest_of
from warmup.table.store import read, write

MODEL = str(ROOT / "examples" / "mlp.py") + ":MLP"
DIMS = "seqlen=16,64"
BITS = ROOT / "docs/benchmarks/bits.py"
START = "import bits, json, sys; print(json.dumps(bits.start(**json.loads(sys.argv[1]))))"
LIMIT_S = 1500  # only ends a test that hangs

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def tables(built: Built, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The built table with the library's call in each row, and with the build's C++ template."""
    table, paths = read(built[0]), []
    for family in (Family.EXTERN, Family.CPP):
        rows = {}
        for problem in built[1]["problems"]:
            choices = {
                each["choice"].split("::")[0]: each["choice"] for each in problem["candidates"]
            }
            choice = choices["cpp" if family is Family.CPP else "aten"]
            uid, _, kwargs = choice.rstrip(")").partition("(")
            pairs = [word.split("=") for word in kwargs.split(",") if word]
            winner = Winner(family, uid, tuple((name, int(value)) for name, value in pairs))
            rows[problem["key"]] = replace(table.rows[problem["key"]], winner=winner)
        paths.append(tmp_path_factory.mktemp("tables") / f"{family}.json")
        write(paths[-1], replace(table, rows=rows))
    return paths


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """``start(table, seed=1)``: what a start with empty caches and the table's threads answered."""
    # With ``code=10``: what it printed to stderr.
    count = iter(range(100))

    def run(table: Path, *, code: int = 0, **case: Any) -> Any:
        folder = tmp_path / f"start-{next(count)}"
        folder.mkdir()
        given = {"kind": "table", "model": MODEL, "dims": [DIMS], "device": "cpu"}
        text = json.dumps({**given, "table": str(table), "spawned": time.monotonic(), **case})
        threads = str(read(table).provenance.runtime.device.threads)
        env = {"RANK": "3", "OMP_NUM_THREADS": threads, "PYTHONPATH": f"{ROOT}:{BITS.parent}"}
        done = python_in(folder, "-c", START, text, code=code, **env)
        return done.stderr if code else answer_of(done.stdout)

    return run


@pytest.mark.long
def test_starts_from_one_table_have_one_hash_for_each_bucket(
    tables: list[Path], start: Start
) -> None:
    """Three starts, each from empty caches, which measure and miss nothing.

    Weights of another seed have other hashes, and so has another valid winner of each row: what
    the table holds fast is what changes the bits.
    """
    library, template = tables
    starts = [start(template) for _ in range(3)]
    hashes = [each["hashes"] for each in starts]
    assert hashes == [hashes[0]] * 3
    assert hashes[0].keys() == {"seqlen=16", "seqlen=64"}
    for each in starts:
        counts = (each["hits"], each["misses"], each["benchmarks"], each["unsteady"])
        assert counts == (4, 0, 0, [])
        assert set(each["nonfinite"].values()) == {0}
    first = {"dims": ["seqlen=16"]}
    others = {"seed": start(template, seed=1, **first), "winner": start(library, **first)}
    for what, other in others.items():
        assert other["hashes"]["seqlen=16"] != hashes[0]["seqlen=16"], what


@pytest.mark.long
def test_a_rank_with_another_table_ends_alone_with_its_sentence(
    tables: list[Path], start: Start
) -> None:
    """Exit code 10, before the model is loaded; the sentence names the rank and both digests."""
    expected, own = (digest_of(read(each)) for each in tables)
    said = start(tables[1], code=10, expect=expected).strip()
    assert said.endswith(f"rank 3: error: digest: table {expected}, here {own}")


@pytest.mark.nightly
def test_twenty_starts_have_one_hash_and_ranks_fail_alone(
    tables: list[Path], tmp_path: Path
) -> None:
    """By docs/benchmarks/bits.py, each start in a Python of its own; a second call adds nothing.

    Of its ranks one is killed, one is late and one has another table; the others have one hash.
    """
    words = ["--model", MODEL, "--dims", DIMS, "--table", str(tables[1])]
    words += ["--starts", "table=20", "--side-by-side", "2"]
    words += ["--results", str(tmp_path / "bits.json")]
    done = run_python(str(BITS), *words, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    starts = [line["start"] for line in lines if isinstance(line.get("start"), dict)]
    summary = [line for line in lines if line.get("start") == "table or bundle"]
    assert [each["start"] for each in starts] == ["table"] * 20
    assert [(each["starts"], each["hashes"]) for each in summary] == [(20, 1), (20, 1)]
    again = run_python(str(BITS), *words, timeout=100)
    assert [json.loads(line) for line in again.stdout.splitlines()] == lines[20:]
    ranks = run_python(str(BITS), *words, "--chaos", "4", timeout=LIMIT_S)
    assert ranks.returncode == 0, ranks.stdout
    ended = {each["rank"]: each for each in map(json.loads, ranks.stdout.splitlines()[:4])}
    assert ended[1]["failed"].startswith("was killed by SIGKILL")
    assert "ended with exit code 10 (rank 3: error: digest: table" in ended[3]["failed"]
    assert ended[0]["hashes"] == ended[2]["hashes"] == starts[0]["hashes"]
