"""`warmup export --to vllm-batch-invariant`: one BLOCK_K for a weight, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_tables import make_row, make_runtime, make_table
from typer.testing import CliRunner

from warmup.cli.app import app
from warmup.core.errors import TableFormatError
from warmup.core.rows import Flag, Row
from warmup.serving.engines import BatchInvariantTiles, batch_invariant_tiles
from warmup.table.store import write

GOOD = "3.0 triton::mm 64x64x128 w8 s4"


def key_of(m: int | str, op: str = "mm", n: int | str = 512, dtype: str = "bf16") -> str:
    return f"{op} m={m} n={n} k=640 {dtype} a=row b=col out={dtype} | epilogue=none"


def row_of(ranking: str, *flags: Flag, uid: str = "aten::mm", **tile: int) -> Row:
    row = make_row(uid, 9.0, **(tile or {"BLOCK": 0}))
    return replace(row, evidence=replace(row.evidence, ranking=ranking, flags=flags))


def tiles_of(rows: dict[str, Row], **device: Any) -> BatchInvariantTiles:
    return batch_invariant_tiles(make_table(rows, runtime=make_runtime(**device)))


def in_vllm(source: str) -> dict[Any, Any]:
    module: dict[str, Any] = {"_BATCH_INVARIANT_MATMUL_TUNED_CONFIGS": {}}
    module |= {"_MatmulMConfig": lambda *tile: tile, "_MatmulShapeConfig": dict}
    exec(source, module)  # noqa: S102
    return module["_BATCH_INVARIANT_MATMUL_TUNED_CONFIGS"].get("hopper", {})


def test_a_weight_gets_the_block_k_of_the_least_mean_time_that_each_m_has() -> None:
    """32 has no candidate at 48; 64 wins a row and the total; 16 columns load too little."""
    won = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
    rows = {
        key_of(16): row_of("9.5 triton::mm 16x32x128 w2 s5", uid="triton::mm", **won),
        key_of("17..32"): row_of(
            "1.0 triton::mm 16x16x32 w4 s3; 5.0 triton::mm 32x64x64 w4 s3 fused; "
            "16.0 triton::mm 32x32x128 w4 s3"
        ),
        key_of(48): row_of(
            "1.0 triton::warmup_mm_dots 1x1x2048 w8 s2; 2.0 triton::mm 128x256x128 w8 s4; "
            "3.0 triton::mm_persistent_tma 64x64x128 w8 s4 not fused; 7.0 triton::mm 64x64x64 w4 s4"
        ),
        key_of(48, "addmm"): row_of("2 triton::mm 16x16x128 w2 s3; 2.9 triton::mm 32x64x128 w8 s4"),
    }
    own = {16: (16, 32, 2, 5), 32: (32, 32, 4, 3), 48: (32, 64, 8, 4)}
    tiles, buckets = tiles_of(rows), {**own, 64: own[48], 2048: (128, 128, 8, 3)}
    assert (tiles.weights, tiles.left_out) == ({(512, 640): (128, buckets)}, {})
    shape = {"block_k": 128, "m_buckets": tuple(buckets.items())}
    assert in_vllm(tiles.source) == {(512, 640): shape}
    wide = tiles_of({**rows, key_of(900): row_of("9.0 triton::mm 64x128x128 w8 s3")})
    assert wide.weights[512, 640][1] == {**own, 900: (64, 128, 8, 3)}


def test_a_weight_whose_every_m_has_no_candidate_keeps_the_tiles_of_vllm() -> None:
    """On an H200 tiles of gaps took up to 4.8 times as long as those that they replaced."""
    for ranking in ("", "2.0 aten::mm", "2.0 triton::mm 16x32x64 w2 s5", "1.0 decompose_k k4"):
        tiles = tiles_of(rows := {key_of(8): row_of(ranking), key_of(256): row_of(GOOD)})
        left_out = {why.rpartition(" ")[2]: keys for why, keys in tiles.left_out.items()}
        assert (tiles.weights, left_out) == ({}, {"backends=TRITON": sorted(rows)}), ranking


def test_rows_that_vllm_has_no_tiles_for_are_left_out_with_the_reason() -> None:
    for key, row, device, why in (
        (key_of(8, dtype="x9"), row_of(GOOD), {}, "x9: vLLM's tiles are for bf16 alone"),
        (key_of(8, "bmm"), row_of(GOOD), {}, "bmm: vLLM's tiles are for mm and addmm alone"),
        (key_of("8.."), row_of(GOOD), {}, "a range of n or k, or of m without an end"),
        (key_of(8, n="8..16"), row_of(GOOD), {}, "a range of n or k, or of m without an end"),
        (key_of(8), replace(row_of(GOOD), untrusted="wrong"), {}, "the row is not trusted"),
        (key_of(8), row_of(GOOD, Flag.UNSTABLE), {}, "its times are unstable"),
        (key_of(8), row_of(GOOD), {"arch": "sm_80"}, "vLLM has no tiles for sm_80"),
    ):
        tiles = tiles_of({key: row}, **device)
        assert (tiles.weights, in_vllm(tiles.source)) == ({}, {}), why
        assert tiles.left_out == {why: [key]}


def test_the_command_counts_rows_and_refuses_a_damaged_table(tmp_path: Path) -> None:
    path, out = tmp_path / "t.json", tmp_path / "tiles.py"
    write(path, make_table({key_of(8): row_of(GOOD)}))
    command = ["export", str(path), "--to", "vllm-batch-invariant", "--out", str(out)]
    assert "1 row as tiles of 1 weight; 0 left out" in CliRunner().invoke(app, command).output
    assert list(in_vllm(out.read_text())) == [(512, 640)]
    path.write_text(path.read_text().replace('"gemm"', '"gem', 1))
    out.unlink()
    assert isinstance(CliRunner().invoke(app, command).exception, TableFormatError)
    assert not out.exists()
