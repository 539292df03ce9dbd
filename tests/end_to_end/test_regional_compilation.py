"""Regional compilation beside a table: a Llama of transformers, whole and layer by layer, on CPU.

`tests/programs/serve_llama.py` imports nothing of warmup while `warmup build -- COMMAND` records
it, and serves both forms from the table that this leaves. Each process starts from empty caches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("transformers") is None, reason="the extra test is not installed"),
]

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs" / "serve_llama.py")


def test_one_table_serves_whole_graphs_and_compiled_layers(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> None:
    """Both forms are served strictly: every question is a hit, and nothing is measured."""
    words = ("-m", "warmup", "build", "--device", "cpu", "--json", "--out", "llama.json")
    words += ("--freezing", "--", sys.executable, PROGRAM)
    folder, said = run_once("llama-build", *words, **variables)
    table = str(folder / "llama.json")
    rows = {key for kind in json.loads(Path(table).read_text())["rows"].values() for key in kind}
    _, said = run_once("llama-serve", PROGRAM, table, **variables)
    served: dict[str, dict[str, Any]] = json.loads(said.splitlines()[-1])
    assert served.keys() == {"whole", "layers"}
    for form, found in served.items():
        assert found["hits"], form
        assert found["misses"] == found["uncovered"] == found["benchmarks"] == {}, form
        assert found["error"] < 1e-5, form
    assert {key for found in served.values() for key in found["hits"]} == rows
