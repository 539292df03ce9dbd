"""Shared layers in every command that serves: real compiles on CPU, from one table and one bundle.

The table freezes no weights, since a layer with frozen weights cannot be shared.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.core.version import __version__
from warmup.table import Provenance, Table
from warmup.table.policy import PolicyOptions, choose_policy
from warmup.table.store import write
from warmup.tuning.pack_bundle import PackedBundle, pack

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "programs" / "models"
MODEL = f"{MODELS / 'layered.py'}:Layered"
SERVE = str(ROOT / "tests" / "programs" / "serve_shared_bundle.py")
BMM = "bmm batch=4 m=8 n=32 k=32 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
SHARED = {
    "shared": 2,
    "artifacts": 1,
    "changes": 0,
    "otherwise": 0,
    "refusal": None,
    "costs": {},
    "slower": [],  # nothing is measured on a CPU
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the product before the layers."""
    from warmup.inductor import connect

    inductor = connect()
    path = tmp_path_factory.mktemp("layers") / "t.json"
    evidence = Evidence(time_us=1.0, library_us=1.0, runner_up=None, runner_up_us=None, tried=2)
    rows = {BMM: Row(Winner(Family.EXTERN, "aten::bmm", ()), evidence)}
    policy = choose_policy(PolicyOptions(), "cpu", inductor.quiet_switches())
    policy = replace(policy, options={**policy.options, "freezing": False})
    write(
        path, Table(Provenance(inductor.runtime("cpu"), __version__, "2026-01-01Z"), policy, rows)
    )
    return path


@pytest.fixture(scope="module")
def bundle(table: Path) -> PackedBundle:
    """The bundle of the table, with the graphs of a server that shares layers."""
    from warmup.inductor import connect

    words = ["--seqlens=8", "--device=cpu", "--layers=once"]
    runtime = connect().runtime("cpu")
    return pack(table, MODEL, runtime, words, serves_compiles=True, graphs_for="default")


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with empty caches, which the first test fills from the bundle."""
    return tmp_path_factory.mktemp("caches")


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in *folder* with the caches there."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT), **more}
    return run_forked(*words, env={**os.environ, **own}, cwd=folder)


def served(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what the server printed."""
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_bundle_of_shared_layers_is_packed_and_served(
    table: Path, bundle: PackedBundle, caches: Path
) -> None:
    """In empty caches no graph is lowered and no kernel compiled: all layers share an artifact."""
    words = (SERVE, MODEL, str(table), str(bundle.path), "8")
    found = served(run(caches, *words, WARMUP_LAYERS="once"))
    assert found.pop("error") < 1e-5
    assert found == {
        "layers": SHARED,
        "refused": None,
        "compiled": [],
        "graphs": 2,
        "lowered": 0,
        "hits": 1,
        "misses": 0,
    }


def test_a_command_under_run_shares_the_layers_that_it_compiles(table: Path, caches: Path) -> None:
    """`warmup run --layers once` is what `warmup.compile` does where its caller says nothing."""
    command = ("python", SERVE, MODEL, "", "", "8")
    words = ("-m", "warmup", "run", "--table", str(table), "--layers", "once", "--", *command)
    found = served(run(caches, *words))
    assert (found["layers"], found["hits"], found["misses"]) == (SHARED, 1, 0)


def test_a_program_that_installs_by_itself_goes_on_under_run(table: Path, caches: Path) -> None:
    """Its own install is first, and that of `warmup run` is the same install."""
    program = (
        "import torch, warmup\n"
        f"handle = warmup.install({str(table)!r})\n"
        "print(torch.compile(torch.mm)(torch.eye(2), torch.ones(2, 1)).tolist())"
    )
    words = ("-m", "warmup", "run", "--table", str(table), "--", "python", "-c", program)
    done = run(caches, *words)
    assert done.stdout == "[[1.0], [1.0]]\n", done.stderr[-3000:]
    assert "could not install" not in done.stderr


def test_a_variant_of_compare_shares_layers(table: Path, caches: Path) -> None:
    """`compare --variants table-layers` serves from the table, and remarks what was shared."""
    case = {
        "model": MODEL,
        "how": "table-layers",
        "table": str(table),
        "inputs": (),
        "buckets": [[["seqlen", 8]]],
        "device": "cpu",
        "dtype": None,
        "seed": 0,
    }
    program = (
        "import json, time, torch\n"
        "from warmup.bench.compare.variant_process import VariantProcess\n"
        "with torch.no_grad():\n"
        f"    said = VariantProcess().start(spawned=time.monotonic(), **{case!r})\n"
        "print(json.dumps(said))\n"
    )
    found = served(run(caches, "-c", program))
    assert "2 share 1 artifact in each bucket" in found["remarks"]
    assert found["outputs"][0]["misses"] == 0


def test_priming_shares_layers(table: Path, caches: Path) -> None:
    """`check --prime --layers auto` finds every row, and says how layers were compiled."""
    words = ("-m", "warmup", "check", str(table), "--prime", "--model", MODEL, "--seqlens", "8")
    done = run(caches, *words, "--device", "cpu", "--layers", "auto", "--json")
    found = served(done)
    bucket = found["buckets"][0]
    assert (found["state"], bucket["hits"] + bucket["from_cache"]) == ("ready", 1)
    assert "layers: 2 share 1 artifact in each bucket" in found["remarks"]


def test_priming_names_the_layer_that_cannot_be_shared(table: Path, caches: Path) -> None:
    """With ``once``, a bucket whose layers differ is not ready: the layer and the reason."""
    words = ("-m", "warmup", "check", str(table), "--prime", "--device", "cpu", "--json")
    model = f"{MODELS / 'layered.py'}:Uneven"
    done = run(caches, *words, "--model", model, "--seqlens", "8", "--layers", "once")
    problem = json.loads(done.stdout)["problems"][0]
    assert done.returncode == 11
    assert "layers='once': too few layers are equal: layers.1: layer.scale == 0.5 does" in problem
