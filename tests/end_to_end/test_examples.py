"""Every example runs as its docstring says, on CPU, and the README shows what commands print."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import PROGRAMS, ROOT, python_in, run_python, warmup_in

from warmup.table.store import read

EXAMPLES = ROOT / "examples"


@pytest.mark.long
def test_the_server_serves_mixed_sizes_and_exits_with_its_audit(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    serve = (str(EXAMPLES / "serve.py"), "--table", str(built[0]), "--requests", "20")
    done = python_in(tmp_path, *serve, WARMUP_AUDIT_LOG="audit.jsonl")
    assert "4 hits, 0 misses, 0 uncovered" in done.stdout
    audit = ("audit", "audit.jsonl", "--fail-on", "miss,uncovered,silent")
    assert "unused rows 0" in warmup_in(tmp_path, *audit).stdout


@pytest.mark.nightly
def test_the_original_layer_builds(tmp_path: Path) -> None:
    inputs = ("--seqlens", "16")
    model = ("--model", f"{EXAMPLES / 'mlp.py'}:VisionLinear", "--device", "cpu")
    done = warmup_in(tmp_path, "build", *model, *inputs, "--out", "layer.json")
    assert "inputs: hidden_states=[seqlen,3420]:bf16, taken from forward" in done.stderr
    # On a CPU whose oneDNN has no bf16, inductor does not pack the weight.
    op = "linear_unary" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "mm"
    assert f"{op} 1280x3420" in done.stdout


@pytest.mark.nightly
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
def test_the_readme_shows_what_the_commands_print() -> None:
    done = run_python(str(ROOT / "docs/benchmarks/terminal.py"), "--check", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
