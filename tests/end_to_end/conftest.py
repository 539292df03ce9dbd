"""What several files here start from: what this CPU can run, and two tables, each made once.

With several workers the first that wants one makes it, and the others wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
MLP = ("--model", f"{ROOT / 'examples' / 'mlp.py'}:MLP", "--seqlens", "16,64")
NET = (
    *("--model", f"{ROOT / 'tests' / 'programs' / 'models' / 'plain_script.py'}:Net"),
    *("--input", "x=[seqlen,32]:f32", "--seqlens", "8"),
)
# Compiles and loads one probe for each set of vector instructions that this CPU reports.
PROBES = """
from torch._inductor import cpu_vec_isa as found
reported = {*found.x86_isa_checker()}
expected = [each for each in found.supported_vec_isa_list if reported >= {*str(each).split()}]
print(int(expected == found.valid_vec_isa_list()))
"""

Built = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all workers of this session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def run_once(folder: Path, name: str, *words: str, **variables: str) -> tuple[Path, str]:
    """Run Python in *folder*/*name*, from empty caches, unless it was; return what it printed."""
    own = folder / name
    own.mkdir(exist_ok=True)
    said = own / "said"
    with FileLock(own / "lock"):
        if not said.exists():
            plain = {key: value for key, value in os.environ.items() if key[:7] != "WARMUP_"}
            caches = {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, *words],
                env={**plain, **caches, **variables},
                cwd=own,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            said.write_text(done.stdout)
    return own, said.read_text()


@pytest.fixture(scope="session")
def variables(shared: Path) -> dict[str, str]:
    """What the processes of these tests are told, so that they wait less; no answer depends on it.

    Where the caches are empty, every process first compiles and loads one probe for each set of
    vector instructions: 6 s, more than most models here. They are tried here, once; if this CPU
    runs what it reports, inductor is told so. The caches themselves still start empty: neither a
    probe nor a graph, a kernel or a timing is carried over. And threads that wait sleep, since the
    workers share the cores.
    """
    _, said = run_once(shared, "probes", "-c", PROBES)
    probed = {"TORCHINDUCTOR_VEC_ISA_OK": "1"} if said == "1\n" else {}
    return {"OMP_WAIT_POLICY": "passive", **probed}


@pytest.fixture(scope="module", autouse=True)
def inherited(variables: dict[str, str]) -> Iterator[None]:
    """Processes started by the tests of a file inherit ``variables``.

    Those of `test_locked_pod` do not, whose environment is emptied: a first start there probes.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def built(shared: Path, variables: dict[str, str]) -> Built:
    """A table of the example MLP for the buckets 16 and 64, and what `warmup build` printed."""
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", *MLP, "--out", "mlp.json")
    words += ("--timings", "timings.jsonl")
    folder, said = run_once(shared, "mlp", *words, **variables)
    return folder / "mlp.json", json.loads(said)


@pytest.fixture(scope="session")
def net(shared: Path, variables: dict[str, str]) -> Built:
    """A table of the plain script's model for 8 rows, and what `warmup build` printed."""
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", *NET, "--out", "net.json")
    folder, said = run_once(shared, "net", *words, **variables)
    return folder / "net.json", json.loads(said)
