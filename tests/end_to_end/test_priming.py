"""`warmup check --prime` with real compiles on CPU, each in a forked process of empty caches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.core.phases import Phase
from warmup.table.store import read, write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "programs" / "models"
NET = f"{MODELS / 'measuring.py'}:Net"
BATCHED = f"{MODELS / 'batched.py'}:Batched"
SERVE = """
import json, os, sys, warnings
import torch, warmup
sys.path.insert(0, sys.argv[1])
from {module} import {name}, example_inputs
warnings.simplefilter("ignore", warmup.StaleTableWarning)
os.environ["WARMUP_ALLOW_MISMATCH"] = "1"
with warmup.install(sys.argv[2], on_miss=sys.argv[3], freezing=True) as handle, torch.no_grad():
    torch.compile({name}().eval(), dynamic=False)(*{inputs})
    report = handle.report()
print("RESULT", json.dumps({{
    "hits": sum(report.hits.values()), "reasons": dict(report.miss_reasons),
    "from_cache": report.from_cache, "uncovered": dict(report.uncovered)}}))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a forked process whose caches are in *folder*."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    return run_forked(*arguments, env={**plain, "PYTHONPATH": str(ROOT), **caches}, cwd=folder)


def build(folder: Path, model: str, seqlens: str, *more: str) -> Path:
    """Build a table with the command and return its path."""
    words = ("--model", model, "--seqlens", seqlens, "--out", "table.json", *more)
    done = run(folder, "-m", "warmup", "build", "--device", "cpu", *words)
    assert done.returncode in {0, 4}, done.stderr[-3000:]
    return folder / "table.json"


def prime(folder: Path, model: str, seqlens: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = ("table.json", "--device", "cpu", "--prime", "--model", model, "--seqlens", seqlens)
    return run(folder, "-m", "warmup", "check", "--freezing", *words, *more)


def serve(folder: Path, module: str, name: str, inputs: str, on_miss: str) -> dict[str, Any]:
    """Serve one call from folder/table.json, and return the counts."""
    code = SERVE.format(module=module, name=name, inputs=inputs)
    done = run(folder, "-c", code, str(MODELS), str(folder / "table.json"), on_miss)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.split("RESULT ")[1])
    return result


@pytest.fixture(scope="module")
def folder(net: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of the measuring model, for 8 and 24 rows.

    Its layer is that of `net`, whose table has the row for 8 already.
    """
    folder = tmp_path_factory.mktemp("net")
    shutil.copy(net[0], folder / "table.json")
    build(folder, NET, "8,24")
    return folder


@pytest.fixture(scope="module")
def partly(folder: Path) -> subprocess.CompletedProcess[str]:
    """Priming with a bucket that hits, one that misses, one that measures, one that hits."""
    (folder / "ready").write_text("stale")
    return prime(folder, NET, "8,16,24", "--ready-file", "ready", "--json")


def test_a_failing_bucket_does_not_stop_the_others(
    partly: subprocess.CompletedProcess[str], folder: Path
) -> None:
    """8 hits, 16 has no row, 24 measures by itself: each reason is one line, and the code is 11.

    The ready file of an earlier run is gone.
    """
    document, lines = json.loads(partly.stdout), partly.stderr.splitlines()
    assert (partly.returncode, document["state"]) == (11, "partly")
    told = [
        (each["bucket"]["seqlen"], each["hits"], len(each["misses"]), len(each["uncovered"]))
        for each in document["buckets"]
    ]
    assert told == [(8, 1, 0, 0), (16, 0, 1, 0), (24, 1, 0, 1)]
    assert [each["problem"] is None for each in document["buckets"]] == [True, False, False]
    miss, measured = [line for line in lines if line.startswith("error: ")]
    assert miss.startswith("error: bucket seqlen=16: no row answers `packed_linear m=16 ")
    assert "differs in m: row " in miss
    assert measured.startswith("error: bucket seqlen=24: measured at measuring.py:measure, which")
    assert not (folder / "ready").exists()


def test_each_bucket_has_the_phases_of_its_own_compile(
    partly: subprocess.CompletedProcess[str],
) -> None:
    """All are traced; the second failed while it was lowered. They add up to its seconds.

    Each phase is rounded to a millisecond, so the sum is within one for each phase.
    """
    document = json.loads(partly.stdout)
    phases = [set(each["phases"]) for each in document["buckets"]]
    for phase, has_it in (
        ("tracing", [True, True, True]),
        ("lowering", [True, True, True]),
        ("code_generation", [True, False, True]),
    ):
        assert [phase in each for each in phases] == has_it, phase
    assert {"import", "load", "install"} <= set(document["phases_before"])
    assert "tracing" not in document["phases_before"]
    wholes = [(each["seconds"], each["phases"]) for each in document["buckets"]]
    whole = sum(document["phases_before"].values()) + sum(seconds for seconds, _ in wholes)
    for seconds, parts in [*wholes, (whole, document["phases"])]:
        assert sum(parts.values()) == pytest.approx(seconds, abs=0.002 * len(Phase)), parts


def test_a_ready_table_is_primed(folder: Path) -> None:
    """With every bucket answered: code 0, the ready file, and the table as it was."""
    table = folder / "table.json"
    before = table.read_bytes(), table.stat().st_mtime_ns
    done = prime(folder, NET, "8", "--ready-file", "ready")
    said = [line for line in done.stderr.splitlines() if " unstable" not in line]  # a busy machine
    assert (done.returncode, said) == (0, [])
    assert "bucket    seqlen=8: 1 hit, 0 misses, 0 uncovered, 0 from cache" in done.stdout
    assert (folder / "ready").exists()
    assert (table.read_bytes(), table.stat().st_mtime_ns) == before


def test_an_upgraded_torch_uses_no_row(folder: Path, tmp_path: Path) -> None:
    """A table of another torch minor answers every lookup with that miss, and no row is used."""
    table = read(folder / "table.json")
    origin = replace(table.provenance, runtime=replace(table.provenance.runtime, torch="2.99.0"))
    write(tmp_path / "table.json", replace(table, provenance=origin))
    result = serve(tmp_path, "measuring", "Net", "(torch.randn(8, 32),)", "fallback")
    assert (result["hits"], result["reasons"]) == (0, {"wrong_runtime": 1})


@pytest.fixture(scope="module")
def batched(bundled: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of the batched model, whose graphs inductor caches, for 8 rows."""
    folder = tmp_path_factory.mktemp("batched")
    shutil.copy(bundled[0] / "t.json", folder / "table.json")
    return folder


def test_a_primed_server_finds_its_graphs_in_the_cache(batched: Path) -> None:
    """Primed in strict mode, a server in fallback mode takes the graph whole from the cache.

    Primed again, nothing is lowered.
    """
    done = prime(batched, BATCHED, "8")
    assert done.returncode == 0, done.stderr
    result = serve(batched, "batched", "Batched", "example_inputs(8)", "fallback")
    assert (result["from_cache"], result["hits"], result["reasons"]) == (1, 0, {})
    done = prime(batched, BATCHED, "8", "--json")
    (bucket,) = json.loads(done.stdout)["buckets"]
    assert (done.returncode, bucket["cached"]) == (0, 1)
    assert {"tracing", "aot", "caches", "first_calls"} <= set(bucket["phases"])
    assert set(bucket["phases"]).isdisjoint({"lowering", "scheduling", "code_generation"})


def test_a_miss_is_told_again_from_the_cache(batched: Path) -> None:
    """A graph that fallback serving compiled with a miss does not pass as primed later."""
    result = serve(batched, "batched", "Batched", "example_inputs(24)", "fallback")
    assert (result["from_cache"], result["reasons"]) == (0, {"not_in_table": 1})
    done = prime(batched, BATCHED, "24", "--on-miss", "fallback", "--json")
    (bucket,) = json.loads(done.stdout)["buckets"]
    assert (done.returncode, bucket["cached"], bucket["cached_misses"]) == (11, 1, 1)
