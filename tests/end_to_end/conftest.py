"""Tables that several files here start from, each built once for all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_processes import MODELS, PROGRAMS, ROOT, Built

MLP = ("--model", str(ROOT / "examples" / "mlp.py"), "--seqlens", "16,64")
NET = ("--model", f"{MODELS / 'plain_script.py'}:Net", "--input", "x=[seqlen,32]:f32")
BATCHED = ("--model", f"{MODELS / 'batched.py'}:Batched", "--set", "bundle_graphs=default")

RunOnce = Callable[..., tuple[Path, str]]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured peaks are those of this run of the tests, for all its workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "user-cache"))
        yield


@pytest.fixture(scope="session")
def build_once(run_once: RunOnce, variables: dict[str, str]) -> Callable[..., Built]:
    """``build_once("mlp", ...)``: the path of mlp.json, and what `warmup build` printed."""

    def build(name: str, *words: str) -> Built:
        command = ("-m", "warmup", "build", "--json", "--device", "cpu", "--out", f"{name}.json")
        folder, said = run_once(name, *command, *words, **variables)
        return folder / f"{name}.json", json.loads(said)

    return build


@pytest.fixture(scope="session")
def built(build_once: Callable[..., Built]) -> Built:
    """A table of the example's MLP, which no option names, and what `warmup build` printed."""
    return build_once("mlp", *MLP)


@pytest.fixture(scope="session")
def net(build_once: Callable[..., Built]) -> Built:
    """A table of the plain script's model for 8 rows, and what `warmup build` printed."""
    return build_once("net", *NET, "--seqlens", "8")


@pytest.fixture(scope="session")
def bundled(build_once: Callable[..., Built]) -> Built:
    """A folder with a table of the batched product for 8 rows and its bundle, graphs included."""
    path, said = build_once("t", *BATCHED, "--seqlens", "8")
    return path.parent, said


@pytest.fixture(scope="session")
def bmm_tables(run_once: RunOnce, variables: dict[str, str]) -> tuple[Path, Path]:
    """Two tables for one batched product: the library call, and the C++ template."""
    program = str(PROGRAMS / "build_bmm.py")
    folder, _ = run_once("bmm", program, "library.json", "template.json", **variables)
    return folder / "library.json", folder / "template.json"
