"""The program that times starts, on a CPU with one small layer that is compiled for itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_processes import ROOT, run_python

pytestmark = pytest.mark.nightly

LAYER = {"hidden": 64, "heads": 2, "kv_heads": 1, "ffn": 128, "layers": 1}


def test_a_start_of_compiled_layers_has_its_table_and_its_bundle(tmp_path: Path) -> None:
    """A line for the table and for the start; a second call finds both and adds nothing."""
    words = ["--model", f"{ROOT}/examples/llama_block.py:LlamaBlocks{json.dumps(LAYER)}"]
    words += ["--dims", "seqlen=8", "--input", "hidden_states=[1,seqlen,64]:bf16"]
    words += ["--device", "cpu", "--layers", "layers", "--starts", "bundle-graphs-layers"]
    words += ["--repeats", "1", "--out", str(tmp_path), "--limit", "580"]
    program = str(ROOT / "docs/benchmarks/starts.py")
    done = run_python(program, *words, timeout=600)
    build, start = (json.loads(line) for line in done.stdout.splitlines())
    assert build["build"]["table-layers"]["rows"] > 0
    found = {name: start["start"][name] for name in ("benchmarks", "misses", "kernels_compiled")}
    assert set(found.values()) == {0}, found
    assert (start["start"]["hits"] > 0, start["start"]["bundle_refused"]) == (True, None)
    assert run_python(program, *words, timeout=100).stdout == ""
