"""Every example runs as its docstring says, on CPU, in a fresh process with empty caches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import PROGRAMS, ROOT, python_in, warmup_in

from warmup.table.store import read

EXAMPLES = ROOT / "examples"


@pytest.mark.long
def test_the_server_serves_mixed_sizes_and_exits_with_its_audit(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Build, serve 20 random sizes, audit: every decision a hit, nothing measured, exit 0."""
    serve = (str(EXAMPLES / "serve.py"), "--table", str(built[0]), "--requests", "20")
    done = python_in(tmp_path, *serve, WARMUP_AUDIT_LOG="audit.jsonl")
    assert "4 hits, 0 misses, 0 uncovered" in done.stdout
    audit = ("audit", "audit.jsonl", "--fail-on", "miss,uncovered,silent")
    assert "unused rows 0" in warmup_in(tmp_path, *audit).stdout


@pytest.mark.nightly
def test_the_original_layer_builds(tmp_path: Path) -> None:
    """Linear(3420 -> 1280) in bf16, its inputs inferred."""
    inputs = ("--seqlens", "16")
    model = ("--model", f"{EXAMPLES / 'mlp.py'}:VisionLinear", "--device", "cpu")
    done = warmup_in(tmp_path, "build", *model, *inputs, "--out", "layer.json")
    assert "inputs: hidden_states=[seqlen,3420]:bf16, taken from forward" in done.stderr
    # On a CPU whose oneDNN has no bf16, inductor does not pack the weight.
    op = "linear_unary" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "mm"
    assert f"{op} 1280x3420" in done.stdout


@pytest.mark.long
def test_a_posted_script_builds_by_the_shortest_command(tmp_path: Path) -> None:
    """In a folder with a script alone: a table, a line on the inferred inputs, kept for `show`."""
    shutil.copy(PROGRAMS / "scripts" / "linear_script.py", tmp_path / "mlp.py")
    command = ("build", "--model", "mlp.py", "--seqlens", "560,1024")
    done = warmup_in(tmp_path, *command, CUDA_VISIBLE_DEVICES="")
    inferred = "inputs: x=[seqlen,96]:f32, taken from forward and the weights"
    advice = '--input "x=[...]:f32" says otherwise'
    assert [line for line in done.stderr.splitlines() if "inputs" in line] == [
        f"{inferred}; {advice}"
    ]
    (table,) = tmp_path.glob("tables/*/mlp.f32.json")
    assert (len(read(table).rows), read(table).provenance.assumptions) == (2, (inferred,))
    assert inferred in warmup_in(tmp_path, "show", str(table)).stdout.splitlines()


@pytest.mark.nightly
def test_the_llama_shaped_layers_build_at_a_small_width(tmp_path: Path) -> None:
    """Both layers share their rows: six GEMM problems for fourteen GEMMs."""
    model = ("--model", f"{EXAMPLES / 'llama_block.py'}:small", "--device", "cpu")
    inputs = ("--input", "hidden_states=[1,seqlen,128]:bf16", "--seqlens", "32")
    done = warmup_in(tmp_path, "build", *model, *inputs, "--out", "llama.json")
    assert "llama.json: 6 rows" in done.stdout
