"""An exported lookup table in a process that cannot import warmup, for a stated H100."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, run_python

pytest.importorskip("triton")

PROGRAM = "cuda_gemms.py"
OPS = ("mm", "int_mm", "addmm", "bmm", "baddbmm", "mm_plus_mm")
CASES: list[dict[str, Any]] = [
    *({"op": op, "tile": {"BLOCK_K": 32}} for op in OPS),
    *({"op": op, "m": 256, "winner": "extern"} for op in OPS),
    {"op": "mm", "linear": True, "gap": 8},
    {"op": "mm", "dtype": "float32"},
    {"op": "addmm", "m": 128, "winner": "tma"},
    {"op": "mm", "m": 32, "winner": "decompose_k"},
]

pytestmark = pytest.mark.long


def serve(folder: Path, table: dict[str, Any]) -> dict[str, Any]:
    """Return what stock torch chooses for the keys of *table*, loaded by the lines of the page."""
    (folder / "lookup_table.json").write_text(json.dumps(table))
    shutil.copy(PROGRAMS / "fake_gpu.py", folder)
    done = run_python("-I", str(PROGRAMS / "serve_exported.py"), str(folder), timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(map(json.loads, done.stdout.splitlines()))


def test_stock_torch_serves_what_is_exported_and_measures_nothing(ask: Any, tmp_path: Path) -> None:
    """Each key has the row's kernel alone; a template that has changed is measured anew."""
    table = dict[str, Any]()
    for case in CASES:
        table |= ask(**{"m": 512, "winner": "triton", "exported": True, **case})
    assert len(table) == len(CASES)
    for key, served in serve(tmp_path, table).items():
        uid = table[key][0]["template_id"]
        parts = ["aten::bmm_dtype"] if uid == "decompose_k" else []
        assert (served["choices"], served["is_exported"]) == ([uid, *parts], True), key
        assert served["measured"] == 0, key
        family, _, name = uid.rpartition("::")
        launched = {"aten": f"extern_kernels.{name}", "triton": "triton_tem"}.get(family, "")
        assert served["launches"][0].startswith(launched), key
    key = next(key for key in table if key.endswith("+addmm"))
    changed = {key: [{**table[key][0], "template_hash": "0" * 64}]}
    assert serve(tmp_path, changed)[key]["measured"] == 1
