"""`build --layers auto` on a GPU: each form of the layers is served strictly from its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "serve_forms.py"
SEQLEN = 64
FORMS = ["once", "whole"]


@pytest.fixture(scope="module")
def built(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the build of two small Llama layers printed; its table lies at ``path``."""
    folder = tmp_path_factory.mktemp("forms")
    said = run(
        folder,
        *("-m", "warmup", "build", "--model", "examples/llama_block.py:small", "--json"),
        *("--input", "hidden_states=[1,seqlen,128]:bf16", "--seqlens", str(SEQLEN)),
        *("--layers", "auto", "--no-pad-weights", "--out", str(folder / "forms.json")),
    )
    found: dict[str, Any] = json.loads(said)
    return found


def keys_of(built: dict[str, Any], form: str) -> set[str]:
    """Return the keys that the bucket asked for in *form*."""
    (bucket,) = (each for each in built["buckets"] if each["layers"] == form)
    return set(bucket["keys"])


def test_the_forms_share_their_gemm_rows(built: dict[str, Any]) -> None:
    """Rows are keyed by problem: what both forms ask for is one row.

    Two layers with nothing around them have no other generated kernels: what is fused across their
    border is what is fused inside of a layer. tests/inductor/test_forms_without_gpu.py has more.
    """
    once, whole = (keys_of(built, form) for form in FORMS)
    assert [key for key in once & whole if key.startswith("mm ")]
    assert {key for key in once | whole if key.startswith("mm ")} <= once & whole


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_served_strictly_and_nothing_is_measured(
    run: Callable[..., str], built: dict[str, Any], tmp_path: Path, form: str
) -> None:
    """From empty caches all that the build asked for in this form hits, and no benchmark runs."""
    out = run(tmp_path, str(PROGRAM), built["path"], form, str(SEQLEN))
    served = json.loads(out.split("RESULT ")[1])
    assert (served["misses"], served["uncovered"], served["autotuner"]) == ({}, {}, 0)
    assert set(served["hits"]) == keys_of(built, form)
    assert served["shared"] == (2 if form == "once" else 0)
    assert served["error"] < 2e-2
