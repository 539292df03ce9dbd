"""Artifacts of a bundle with real compiles on CPU: each start is a process with empty caches."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.core.version import __version__
from warmup.diagnostics.audit import audit
from warmup.table import Provenance, Table
from warmup.table.policy import PolicyOptions, choose_policy
from warmup.table.store import write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODEL = f"{ROOT / 'tests' / 'programs' / 'models' / 'layered.py'}:Layered"
SERVE = str(ROOT / "tests" / "programs" / "serve_artifacts.py")
BMM = "bmm batch=4 m=8 n=32 k=32 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
LINEAR = (
    "packed_linear m=32 n=32 k=32 f32 a=row b=packed out=f32 fp32=ieee | epilogue=gelu,mul(0.5)"
)


@pytest.fixture(scope="module", autouse=True)
def needs_aot_compile() -> None:
    """Artifacts need torch 2.13."""
    from warmup.inductor.ahead_of_time import refusal_of_torch

    if (refusal := refusal_of_torch()) is not None:
        pytest.skip(refusal)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A table of the layered model for 8 rows, its bundle with artifacts, and the build's JSON.

    The table has the two rows before the build, which measures nothing then.
    """
    from warmup.inductor import connect

    folder = tmp_path_factory.mktemp("built")
    inductor = connect()
    evidence = Evidence(time_us=1.0, library_us=1.0, runner_up=None, runner_up_us=None, tried=2)
    library = {BMM: "aten::bmm", LINEAR: "aten::_mkl_linear"}
    rows = {key: Row(Winner(Family.EXTERN, uid, ()), evidence) for key, uid in library.items()}
    policy = choose_policy(PolicyOptions(), "cpu", inductor.quiet_switches())
    provenance = Provenance(inductor.runtime("cpu"), __version__, "2026-01-01T00:00:00Z")
    write(folder / "t.json", Table(provenance, policy, rows))
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", "--model", MODEL)
    words += ("--seqlens", "8", "--out", "t.json", "--bundle-compiled", "default")
    done = run(folder / "caches", folder, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout)


def run(caches: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in *cwd* with its caches in *caches* and an audit log beside them."""
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "WARMUP_AUDIT_LOG": str(caches / "audit.jsonl"),
        "WARMUP_WAIT_FOR_QUIET": "0",
        "PYTHONPATH": str(ROOT),
    }
    return run_forked(*words, env={**os.environ, **own}, cwd=cwd)


def serve(caches: Path, built: Path, *words: str) -> dict[str, Any]:
    """Serve the model from the bundle, and return the counts by change."""
    done = run(caches, built, SERVE, MODEL, "t.json", "t.bundle", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches and the audit log of `served`."""
    return tmp_path_factory.mktemp("start")


@pytest.fixture(scope="module")
def served(built: tuple[Path, dict[str, Any]], start: Path) -> dict[str, Any]:
    """A start with the bundle: size 8 is in it, size 12 is not."""
    found: dict[str, Any] = serve(start, built[0], "8,12", "keep")["keep"]
    return found


@pytest.fixture(scope="module")
def changed(
    built: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What became of models that differ from the model of the build."""
    changes = "rename,widen,tie,transpose,scale,swap_function,add_output,loosen"
    return serve(tmp_path_factory.mktemp("changed"), built[0], "8", changes)


def test_a_build_says_what_its_artifacts_were_compiled_from(
    built: tuple[Path, dict[str, Any]],
) -> None:
    """One artifact for one bucket; of the two rows only that without a frozen weight was asked."""
    bundle = built[1]["bundle"]
    assert (bundle["artifacts"], bundle["artifact_rows"], built[1]["rows"]) == (1, 1, 2)


def test_a_bucket_in_the_bundle_is_served_without_compiling(served: dict[str, Any]) -> None:
    """No frame is traced, no graph lowered, nothing measured, no kernel compiled."""
    counts = {name: value for name, value in served["sizes"]["8"].items() if name != "error"}
    assert counts == {"frames": 0, "graphs": 0, "benchmarks": 0, "compiled": []}
    assert served["bundled"] == ["seqlen=8"]


def test_an_artifact_computes_what_the_model_does(served: dict[str, Any]) -> None:
    """Its first result and its second are those of eager mode."""
    assert served["sizes"]["8"]["error"] < 1e-5


def test_a_bucket_that_the_bundle_lacks_is_compiled(served: dict[str, Any]) -> None:
    """It has no artifact in the bundle, and its result is the model's."""
    assert served["sizes"]["12"]["frames"] == 1
    assert served["sizes"]["12"]["error"] < 1e-5
    assert served["refused"] == {}


def test_a_call_of_another_kind_is_compiled_and_counted(served: dict[str, Any]) -> None:
    """The guards of the artifact hold for the arguments that it was compiled for alone."""
    assert served["odd_error"] < 1e-5
    assert served["misfits"] == 1


def test_the_report_has_the_rows_of_artifacts(served: dict[str, Any]) -> None:
    """A row that answered while an artifact was compiled is not unused, and its graph counts."""
    assert served["artifact_rows"] == {BMM: 1}
    assert (served["from_cache"], served["decisions"]) == (1, 1)
    assert BMM not in served["unused"]
    assert "1 artifact (1 row)" in served["text"]
    assert "1 from the bundle" in served["model_text"]


def test_an_audit_knows_the_rows_of_artifacts(
    built: tuple[Path, dict[str, Any]], served: dict[str, Any], start: Path
) -> None:
    """The log of the start proves that the row was used, though inductor asked for nothing."""
    del served
    report = audit([start / "audit.jsonl"], table=built[0] / "t.json")
    assert report.artifacts == 1
    assert report.unused is not None
    assert BMM not in report.unused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("rename", "layers.0.up.weight: bundle f32[32,32] strides 32,1 on cpu, here none"),
        ("widen", "layers.0.up.weight: bundle f32[32,32] strides 32,1 on cpu, here f32[48,32] "),
        ("tie", "layers.1.up.weight: bundle f32[32,32] strides 32,1 on cpu, here the tensor of l"),
        ("transpose", "here f32[32,32] strides 1,32 on cpu"),
        ("scale", ".scale == 0.5"),
        ("swap_function", "its output is "),
        ("add_output", "its first call failed (ValueError"),
        ("loosen", "forward takes others by position only"),
    ],
)
def test_a_model_that_differs_is_refused(changed: dict[str, Any], change: str, reason: str) -> None:
    """The difference is named, and the bucket is compiled from the model as it is."""
    found = changed[change]
    assert found["bundled"] == []
    assert reason in found["refused"]["seqlen=8"]
    assert found["artifacts_refused"] == 1
    assert found["sizes"]["8"]["frames"] == 1
    assert found["sizes"]["8"]["error"] < 1e-5


@pytest.fixture(scope="module")
def by_policy(built: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Artifacts of a range and of an exact size, each served at its size and at a smaller one."""
    folder = tmp_path_factory.mktemp("policies")
    program = str(ROOT / "tests" / "programs" / "range_artifacts.py")
    done = run(folder, built[0], program, MODEL, "t.json", "t.bundle", str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(("policy", "bucket"), [("range", "seqlen=2..8"), ("pad", "seqlen=8")])
def test_an_artifact_serves_smaller_sizes(
    by_policy: dict[str, Any], policy: str, bucket: str
) -> None:
    """An artifact of a range does, and an exact artifact does by padding; nothing is traced."""
    found = by_policy[policy]
    assert (found["bundled"], found["refused"], found["misfits"]) == ([bucket], {}, 0)
    assert found["frames"] == 0
    assert max(found["errors"]) < 1e-5


def test_a_check_primes_by_artifacts(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """It loads them as a server does, and compiles nothing."""
    words = ("check", "t.json", "--device", "cpu", "--bundle", "t.bundle", "--prime")
    done = run(tmp_path, built[0], "-m", "warmup", *words, "--model", MODEL, "--seqlens", "8")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 artifact," in done.stdout
    assert "; 0 kernels compiled that it lacks" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("build", "--bundle-compiled", "reduce-overhead"),
        ("check", "t.json", "--prime", "--mode", "reduce-overhead", "--save-artifacts", "."),
    ],
    ids=["build", "check"],
)
def test_modes_with_cuda_graphs_are_refused(
    built: tuple[Path, dict[str, Any]], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Before anything is tuned or compiled, in one line with the reason."""
    model = ("--model", MODEL, "--seqlens", "8", "--device", "cpu")
    done = run(tmp_path, built[0], "-m", "warmup", *words, *model)
    assert done.returncode == 3
    assert "records CUDA graphs" in done.stderr
