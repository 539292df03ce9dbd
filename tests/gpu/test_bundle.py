"""A bundle on a GPU: a start in empty caches compiles no kernel, even where no compiler is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Start = Callable[..., subprocess.CompletedProcess[str]]
MODEL = "examples/vision_block.py:small"
INPUT = "hidden_states=[seqlen,128]:bf16"


@pytest.fixture(scope="module", params=[(), ("--set", "bundle_graphs=default")], ids=["k", "g"])
def bundled(
    request: pytest.FixtureRequest,
    run: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with a table of the small block and its bundle, without and with graphs."""
    folder = tmp_path_factory.mktemp("bundled")
    run(
        tmp_path_factory.mktemp("caches"),
        *("-m", "warmup", "build", "--model", MODEL, "--input", INPUT, "--seqlens", "64,512"),
        *("--out", str(folder / "t.json"), "--bundle", *request.param),
    )
    return folder


def serve(start: Start, folder: Path, bundled: Path, **variables: str) -> dict[str, Any]:
    named = (MODEL, str(bundled / "t.json"), str(bundled / "t.bundle"), "64,512", "cuda", INPUT)
    done = start(folder, "tests/programs/serve_bundle.py", *named, **variables)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_bundled_start_compiles_no_kernel(start: Start, bundled: Path, tmp_path: Path) -> None:
    """Neither Triton nor the C compiler made anything that the bundle does not hold."""
    found = serve(start, tmp_path, bundled)
    assert found["refused"] is None
    assert found["compiled"] == []
    assert (found["misses"], found["from_cache"] > 0) == (0, found["graphs"] > 0)
    assert found["error"] < 0.02


def test_a_bundled_start_needs_no_compiler(start: Start, bundled: Path, tmp_path: Path) -> None:
    """Launchers are in the bundle too: a compiler that fails is never asked."""
    assert serve(start, tmp_path, bundled, CC="false")["compiled"] == []
