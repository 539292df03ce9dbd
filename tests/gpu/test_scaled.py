"""Products in 8 bits on a GPU: rows from keys alone, each measured beside the library's kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Row
from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU that multiplies in fp8 with a scale for each row",
)

PROGRAM = Path(__file__).resolve().parents[2] / "tests/programs/serve_block.py"
FACTORS = "n=1024 k=2048 {} a=row b=col"
BY_ROW = f"scaled_mm m=16 {FACTORS.format('f8_e4m3fn')} scale=f32[16,1]:f32[1,1024] accum=fast"
BY_TENSOR = f"scaled_mm m=16 {FACTORS.format('f8_e4m3fn')} scale=f32[]:f32[]"
SCALED = "mul(f32[64,1]),mul(f32[1024]),to(f32)"
KEYS = {
    "rows": f"{BY_ROW} out=bf16 | epilogue=none",
    "tensor": f"{BY_TENSOR} out=bf16 | epilogue=silu",
    "int8": f"int_mm m=64 {FACTORS.format('i8')} out=i32 | epilogue={SCALED}",
}
Built = tuple[dict[str, Row], dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def built(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The rows of one build of all keys, and what it wrote of each key's candidates."""
    folder = tmp_path_factory.mktemp("scaled")
    misses, table = (folder / f"{name}.json" for name in ("misses", "table"))
    problems = [
        {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1} for key in KEYS.values()
    ]
    misses.write_text(json.dumps({"schema": 1, "digests": [], "problems": problems}))
    command = ("-m", "warmup", "build", "--problems", misses, "--out", table, "--json")
    problems = json.loads(run(folder, *map(str, command)))["problems"]
    return dict(read(table).rows), {one["key"]: one for one in problems}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_the_library_is_measured_too(built: Built, key: str) -> None:
    """Its time is in the row, whoever won: a build without it would take any template."""
    evidence = built[0][key].evidence
    assert evidence.library_us is not None
    assert evidence.library_us >= evidence.time_us
    assert evidence.gbps is not None


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_no_candidate_is_wrong(built: Built, key: str) -> None:
    """Against operands dequantized in float32, every candidate that ran is right."""
    reasons = {one["rejection"] for one in built[1][key]["candidates"]} - {None}
    assert reasons <= {"launch", "compile"}


@pytest.mark.parametrize("name", ["rows", "tensor"])
def test_persistent_tma_is_tried(built: Built, name: str) -> None:
    """Candidates of the template with scales in its epilogue have times."""
    candidates = built[1][KEYS[name]]["candidates"]
    uid = "triton::scaled_mm_device_tma_epilogue_scaling"
    timed = [one for one in candidates if one["choice"].startswith(uid) and one["time_us"]]
    assert len(timed) > 0


@pytest.mark.parametrize("name", ["tensor", "int8"])
def test_an_epilogue_is_measured_with_its_product(built: Built, name: str) -> None:
    assert str(built[0][KEYS[name]].evidence.scope) == "fused"


@pytest.mark.parametrize(("model", "op"), [("Fp8", "scaled_mm"), ("Int8", "int_mm")])
def test_a_gated_mlp_in_8_bits_is_built_and_served(
    run: Callable[..., str], tmp_path: Path, model: str, op: str
) -> None:
    """Its three products have rows, both gates measured fused; served strictly, nothing misses."""
    path = tmp_path / "table.json"
    target = f"tests/programs/models/eight_bit_ffn.py:{model}"
    command = ("-m", "warmup", "build", "--model", target, "--seqlens", "32", "--out", str(path))
    run(tmp_path / "build", *command)
    rows = {key: row for key, row in read(path).rows.items() if key.startswith(op)}
    assert len(rows) == 3
    assert sum(str(row.evidence.scope) == "fused" for row in rows.values()) >= 2
    case = {"table": str(path), "seqlens": [32], "mode": "default", "model": model.lower()}
    said = run(tmp_path / "serve", str(PROGRAM), json.dumps({**case, "uncovered": "forbid"}))
    result = json.loads(said.split("RESULT ")[1])
    assert (result["benchmarker"], result["autotuner"]) == (0, 0)
    assert (result["misses"], result["uncovered"], result["unused"]) == ({}, {}, [])
    assert max(result["errors"]) < 5e-2
