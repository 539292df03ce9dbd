"""Torch's files of tuned GEMMs: read into a table, measured there, and written from one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import run_python
from sample_tables import make_row, make_table

from warmup.core.errors import SettingsError
from warmup.core.rows import Family, Row, Search, Winner
from warmup.table.schema import Table
from warmup.table.store import read
from warmup.tuning.exchange import (
    Entry,
    export_lookup_table,
    export_tunable_ops,
    read_configs,
    winner_of,
)

ROOT = Path(__file__).resolve().parents[2]
TILE = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_stages": 3, "num_warps": 8}
TEMPLATE = {"template_id": "triton::mm", "template_hash": "0123456789abcdef", **TILE}
NODES = "((torch.bfloat16, [512, 640], [640, 1]), (torch.bfloat16, [640, 768], [1, 640]))"
BIAS = "(torch.bfloat16, [512, 768], [0, 1])"
BATCHES = "((torch.float32, [4, 8, 32], [256, 32, 1]), (torch.float32, [4, 32, 32], [1024, 32, 1]))"
MM = "mm m=512 n=768 k=640 bf16 a=row b=col out=bf16 | epilogue=none"
BMM = "bmm batch=4 m=8 n=32 k=32 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
Done = subprocess.CompletedProcess[str]


def entries(tmp_path: Path, document: object) -> list[Entry]:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return read_configs(path)


def test_each_config_is_an_entry_with_the_key_of_its_row(tmp_path: Path) -> None:
    """Keys with a device, with scalars and without; the kwargs that are tuned are kept."""
    document = {
        f"{NODES}+mm": [TEMPLATE | {"EVEN_K": True}, {"template_id": "aten::mm"}],
        f"NVIDIA H100+({BIAS}, {NODES[1:]}+alpha=2&beta=1+addmm": [TEMPLATE],
        f"{BATCHES}+bmm": [{"template_id": "aten::bmm"}],
    }
    first, second, biased, batched = entries(tmp_path, document)
    assert first.key == second.key == MM
    assert first.winner is not None
    assert dict(first.winner.kwargs) == TILE
    assert first.winner.source_hash == TEMPLATE["template_hash"]
    assert first.origin == "tuned.json:entry 1"
    assert biased.key == MM.replace("mm m", "addmm m").replace("b=col", "b=col bias=1d alpha=2")
    assert batched.key == BMM


def test_what_cannot_be_taken_says_why(tmp_path: Path) -> None:
    """An entry of no problem has no key; an entry without a whole kernel keeps its key."""
    for text, why in {
        "nonsense+mm": "not a key of torch's lookup table",
        f"{NODES}+convolution": "the key of convolution does not say all",
        f"{NODES}+addmm": "addmm has 3 operands, the key 2",
        f"{NODES}+bmm": "a factor of bmm has 3 dims",
        NODES.replace("[640, 768]", "[641, 768]") + "+mm": "do not fit together",
        NODES.replace("bfloat16", "float16", 1) + "+mm": "do not fit together",
        f"{NODES}+alpha=x+mm": "only plain alpha and beta are read",
        NODES.replace("512", "9999999999") + "+mm": "a size or stride is larger than",
    }.items():
        (entry,) = entries(tmp_path, {text: [TEMPLATE]})
        assert entry.key is None, text
        assert why in entry.lacking, text
    for changes, why in (
        ({"template_id": None}, "the config has no template_id"),
        ({"template_id": "triton::warmup_mm_dots"}, "no kernel that a row can name"),
        ({"template_id": "ck::mm"}, "no kernel that a row can name"),
        ({"num_stages": None}, "num_stages is not given"),
        ({"BLOCK_M": 48}, "BLOCK_M=48 is no value that a template takes"),
        ({"template_hash": "../../x"}, "no hash"),
        ({"template_id": "decompose_k"}, "k_split is not given"),
    ):
        (entry,) = entries(tmp_path, {f"{NODES}+mm": [TEMPLATE | changes]})
        assert (entry.key, entry.winner) == (MM, None), changes
        assert why in entry.lacking, changes


def test_a_file_of_another_form_is_one_error(tmp_path: Path) -> None:
    """Also one that is no JSON, no UTF-8, or that does not exist: nothing else is raised."""
    path = tmp_path / "t.json"
    for content in (b"[]", b'{"a": {}}', b"{", b"\xff", b"\x80\x04K\x01.", b'{"a": ' * 5000):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=r"t\.json"):
            read_configs(path)
    for missing in (tmp_path / "none.json", tmp_path, Path("a\0b")):
        with pytest.raises(SettingsError):
            read_configs(missing)


def test_what_shipped_tables_export_reads_back_as_their_rows(tmp_path: Path) -> None:
    """Each GEMM row is exported or left out with a reason, and an exported kernel is the row's."""
    exported_rows = 0
    for path in sorted(ROOT.glob("tables/*/*.json")):
        table = read(path)
        exported = export_lookup_table(table)
        left_out = [key for keys in exported.left_out.values() for key in keys]
        assert sorted({*left_out} & table.rows.keys()) == sorted(left_out), path
        assert all(reason.strip() for reason in exported.left_out), path
        kernels: dict[str, Any] = {}
        for entry in entries(tmp_path, json.loads(exported.text)):
            assert None not in {entry.key, entry.winner}, (path, entry)
            kernels[str(entry.key)] = entry.winner
        for key in table.rows.keys() - set(left_out):
            plain = f"{key.partition(' | ')[0]} | epilogue=none"
            assert kernels[plain].names(table.rows[key].winner), (path, key)
        exported_rows += len(table.rows) - len(left_out)
    assert exported_rows > 100


def table_for(
    rows: dict[str, Row], *, device: str = "cuda", torch: str = "2.13.0", **named: str
) -> Table:
    table = make_table(rows=rows)
    runtime = table.provenance.runtime
    of_type = replace(runtime.device, type=device, **named)
    runtime = replace(runtime, device=of_type, torch=torch)
    origin = replace(table.provenance, runtime=runtime)
    return replace(table, provenance=origin)


def test_rows_that_torchs_table_cannot_express_are_left_out_with_the_reason() -> None:
    """None of them is exported as something else."""
    split = Winner(Family.SUBGRAPH, "decompose_k", (("k_split", 4),))
    apart = replace(winner_of(TEMPLATE), fused=False)
    timed = replace(make_row().evidence, ranking=f"9 {apart.short}; 12 {apart.choice.short} fused")
    biased = MM.replace("mm m", "addmm m").replace("b=col", "b=col bias=1d")
    f32 = "mm m=512 n=768 k=640 f32 a=row b=col out=f32 fp32=tf32 | epilogue=none"
    dots = replace(winner_of(TEMPLATE), uid="triton::warmup_mm_dots")
    for key, changes, why in (
        (MM, {"device": "cpu"}, "the table is for a CPU"),
        (MM, {"untrusted": "wrong"}, "the row is not trusted"),
        (MM, {"winner": dots}, "torch does not have the kernel triton::warmup_mm_dots"),
        (MM.replace("m=512", "m=2..512"), {}, "a range of sizes"),
        (MM.replace("out=bf16", "out=f32"), {}, "a result of another dtype"),
        (MM.replace("out=bf16", "out=bf16 reduction=full"), {}, "reductions in full precision"),
        (f32, {}, "f32 products in tf32"),
        (biased.replace("1d", "1d alpha=0.5"), {}, "an alpha or beta other than 1"),
        (MM, {"winner": apart, "evidence": timed}, "faster where nothing is fused into it"),
        (MM, {"winner": split}, "decompose_k from K = 32"),
        (MM.replace("k=640", "k=49152"), {}, "no tile from 64"),
        ("linear_unary m=16 n=32 k=96 bf16 a=row b=packed out=bf16 | epilogue=none", {}, "linear"),
    ):
        device = changes.pop("device", "cuda")
        row = replace(make_row(), **{"winner": winner_of(TEMPLATE), **changes})
        exported = export_lookup_table(table_for({key: row}, device=device))
        assert (exported.entries, len(exported.left_out)) == (0, 1), key
        assert why in next(iter(exported.left_out)), key


def test_a_key_of_torch_gets_the_kernel_with_the_least_time_over_its_rows() -> None:
    """Rows with another kernel are left out; a kernel that a row does not list was slower there."""
    tile, library = winner_of(TEMPLATE), Winner(Family.EXTERN, "aten::mm")
    plain = replace(make_row().evidence, time_us=10, ranking=f"10 aten::mm; 12 {tile.short}")
    fused = replace(plain, time_us=11, ranking=f"11 {tile.short} fused; 20 aten::mm")
    rows = {
        MM: replace(make_row(), winner=library, evidence=plain),
        MM.replace("none", "relu"): replace(make_row(), winner=tile, evidence=fused),
    }
    exported = export_lookup_table(table_for(rows))
    ((config,),) = json.loads(exported.text).values()
    ((reason, keys),) = exported.left_out.items()
    assert (config["template_id"], keys) == ("triton::mm", [MM])
    assert "another kernel takes less time" in reason
    for torch in ("2.10.1", "2.16.0+cu140"):
        with pytest.raises(SettingsError, match=r"known of 2\.11 to 2\.15"):
            export_lookup_table(table_for(rows, torch=torch))


CONFIG = "id_66_tile_10_stages_35_splitk_1_red_0_swizzle_0_custom_1_inner_0_cluster_4"
FIRST = "GemmTunableOp_BFloat16_TN,tn_768_512_640_ld_640_640_768"
TUNABLE = f"""Validator,PT_VERSION,2.15.0
Validator,CUBLASLT_VERSION,130401
Validator,CUDA_DEVICE,9.0:NVIDIA H200
{FIRST},Gemm_Cublaslt_{CONFIG},0.009500
GemmAndBiasTunableOp_Half_NT,nt_32_8_64_ld_32_8_32,Gemm_Cublaslt_{CONFIG},0.009500
"""


def test_tunable_ops_are_read_and_written_as_torch_spells_them(tmp_path: Path) -> None:
    """A line each of mm and addmm, by rows and by columns; a table gives the same file."""
    path = tmp_path / "tuned.csv"
    path.write_text(TUNABLE, encoding="utf-8")
    plain, biased = read_configs(path)
    kwargs = (("algorithm", CONFIG), ("cublas", 130401))
    key = "addmm m=8 n=32 k=64 f16 a=col b=row bias=1d out=f16 | epilogue=none"
    assert [plain.key, biased.key] == [MM, key]
    assert plain.winner == Winner(Family.BLAS, "blas::mm", kwargs)
    assert biased.winner == Winner(Family.BLAS, "blas::addmm", kwargs)
    row, older = make_row(), replace(plain.winner, kwargs=(kwargs[0], ("cublas", 130101)))
    evidence = replace(row.evidence, time_us=9.5)
    rows = {
        str(one.key): replace(row, winner=one.winner, evidence=evidence) for one in (plain, biased)
    }
    others = {MM.replace("768", "64"): row, MM.replace("768", "32"): replace(row, winner=older)}
    h200 = {"name": "NVIDIA H200", "arch": "sm_90"}
    exported = export_tunable_ops(table_for({**rows, **others}, torch="2.15.0+cu132", **h200))
    assert sorted(exported.text.splitlines()) == sorted(TUNABLE.splitlines())
    reasons = {reason: len(keys) for reason, keys in exported.left_out.items()}
    older_why = "the algorithm is of an older cuBLASLt"
    assert reasons == {"the kernel is no algorithm of cuBLASLt": 1, older_why: 1}
    with pytest.raises(SettingsError, match=r"names algorithms of cuBLASLt in torch 2\.15"):
        export_tunable_ops(table_for(rows))
    for line in (
        f"{FIRST},Default,0.1",
        f"{FIRST.replace('_768', '_999', 2).replace('999', '768', 1)},Gemm_Cublaslt_{CONFIG}",
        f"{FIRST.replace('BFloat16', 'float')},Gemm_Cublaslt_{CONFIG}",
        f"{FIRST.replace('512', '*')},Gemm_Cublaslt_{CONFIG}",
    ):
        path.write_text("\n".join([*TUNABLE.splitlines()[:3], line]), encoding="utf-8")
        (entry,) = read_configs(path)
        assert (entry.origin, entry.winner) == ("tuned.csv:line 4", None), line


BUILD = (
    *("-m", "warmup", "build", "--problems", "tuned.json"),
    *("--out", "t.json", "--device", "cpu", "--set", "wait_for_quiet=0"),
)


def test_nothing_is_written_where_no_config_is_complete(tmp_path: Path) -> None:
    """What is not taken is counted by reason, and no table is made."""
    entries(tmp_path, {f"{NODES}+mm": [TEMPLATE | {"num_stages": None}] * 2})
    done = run_python(*BUILD, cwd=tmp_path)
    assert (done.returncode, (tmp_path / "t.json").exists()) == (1, False), done.stderr
    text = " ".join(done.stderr.split())
    assert "2 configs read, 0 complete" in text
    assert "not taken: 2 configs: num_stages is not given (first: tuned.json:entry 1)" in text
    refused = run_python(*BUILD, "--search", "wide", cwd=tmp_path)
    assert "torch's file cannot be combined with --search" in refused.stderr


def test_a_config_is_measured_and_becomes_a_row(tmp_path: Path) -> None:
    """The config and the library's kernels are measured; the fastest is a row, which stays."""
    entries(tmp_path, {f"{BATCHES}+bmm": [{"template_id": "aten::bmm"}]})
    done = run_python(*BUILD, cwd=tmp_path)
    assert done.returncode in {0, 4}, done.stderr  # 4: noise made the row unstable
    (row,) = read(tmp_path / "t.json").rows.values()
    assert (str(row.winner), row.evidence.search, row.evidence.tried) == (
        "aten::bmm",
        Search.IMPORTED,
        1,
    )
    assert "t.json: 1 row, 1 tuned now" in done.stdout
    again = json.loads(run_python(*BUILD, "--json", cwd=tmp_path).stdout)
    assert (again["known"], again["problems"], again["not_rebuilt"]) == ([BMM], [], {})
