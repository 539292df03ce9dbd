"""Tables that several files here start from, each built once for all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLP = ("--model", str(ROOT / "examples" / "mlp.py"), "--seqlens", "16,64")
NET = (
    *("--model", f"{ROOT / 'tests' / 'programs' / 'models' / 'plain_script.py'}:Net"),
    *("--input", "x=[seqlen,32]:f32", "--seqlens", "8"),
)

BATCHED = ("--model", f"{ROOT / 'tests' / 'programs' / 'models' / 'batched.py'}:Batched")

RunOnce = Callable[..., tuple[Path, str]]
Built = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured peaks are those of this run of the tests, for all its workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "user-cache"))
        yield


@pytest.fixture(scope="session")
def built(run_once: RunOnce, variables: dict[str, str]) -> Built:
    """A table of the example's MLP, which no option names, and what `warmup build` printed."""
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", *MLP, "--out", "mlp.json")
    folder, said = run_once("mlp", *words, **variables)
    return folder / "mlp.json", json.loads(said)


@pytest.fixture(scope="session")
def net(run_once: RunOnce, variables: dict[str, str]) -> Built:
    """A table of the plain script's model for 8 rows, and what `warmup build` printed."""
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", *NET, "--out", "net.json")
    folder, said = run_once("net", *words, **variables)
    return folder / "net.json", json.loads(said)


@pytest.fixture(scope="session")
def bundled(run_once: RunOnce, variables: dict[str, str]) -> Built:
    """A folder with a table of the batched product for 8 rows and its bundle, graphs included."""
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", *BATCHED)
    words += ("--seqlens", "8", "--out", "t.json", "--set", "bundle_graphs=default")
    folder, said = run_once("bundled", *words, **variables)
    return folder, json.loads(said)


@pytest.fixture(scope="session")
def bmm_tables(run_once: RunOnce, variables: dict[str, str]) -> tuple[Path, Path]:
    """Two tables for one batched product: the library call, and the C++ template."""
    program = str(ROOT / "tests" / "programs" / "build_bmm.py")
    folder, _ = run_once("bmm", program, "library.json", "template.json", **variables)
    return folder / "library.json", folder / "template.json"
