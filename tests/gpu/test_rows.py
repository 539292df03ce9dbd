"""Rows of each kind on a GPU: candidates are timed and compared, and a row says what runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Family, Scope, ranked
from warmup.keys.reduction import LOOPED, PERSISTENT, split_into
from warmup.serving.audit import audit
from warmup.table.review import review, review_table
from warmup.table.schema import Table
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU from Hopper on, which multiplies in groups, and in fp8 by rows",
)

Build = Callable[..., dict[str, Any]]
Run = Callable[..., str]
ResultOf = Callable[..., dict[str, Any]]

HEAD = "import torch\nfrom torch import nn\n"
PATCHES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 768, 14, stride=14, dtype=torch.bfloat16)

    def forward(self, x):
        return self.embed(x)

def example_inputs(seqlen):
    return (torch.randn(seqlen, 3, 518, 518, dtype=torch.bfloat16),)
"""
EXPERTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(8, 512, 1024, dtype=torch.bfloat16) / 32)

    def forward(self, x, ends):
        return torch._grouped_mm(x, self.weights.transpose(-2, -1), ends)

def example_inputs(seqlen):
    ends = torch.arange(1, 9, dtype=torch.int32) * (seqlen // 8)
    return torch.randn(seqlen, 1024, dtype=torch.bfloat16), ends
"""
POOLED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(32, 320, dtype=torch.bfloat16)

    def forward(self, x, y):
        return torch.nn.functional.silu(self.norm(x)), y.mean(1)

def example_inputs(seqlen):
    like = {"dtype": torch.bfloat16}
    return torch.randn(2, 320, 64, 64, **like), torch.randn(8, seqlen, 768, **like)
"""
NORMS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        like = {"dtype": torch.bfloat16}
        self.narrow = nn.LayerNorm(768, **like)
        self.wide = nn.RMSNorm(4096, **like)

    def forward(self, x, y):
        return self.narrow(x), self.wide(y), torch.softmax(y, -1)

def example_inputs(seqlen):
    like = {"dtype": torch.bfloat16}
    return torch.randn(seqlen, 768, **like), torch.randn(seqlen, 4096, **like)
"""


@pytest.fixture
def built(build: Build, tmp_path: Path) -> Callable[[str, int], Table]:
    """``built(source, size)``: the table of the class Model in *source* for one size."""

    def make(source: str, size: int) -> Table:
        (tmp_path / "model.py").write_text(HEAD + source)
        build(tmp_path, "--model", f"{tmp_path / 'model.py'}:Model", "--seqlens", size)
        return read(tmp_path / "t.json")

    return make


def test_templates_of_convolutions_take_the_time_that_their_operations_need(
    built: Callable[..., Table],
) -> None:
    """Several candidates have a time, none is implausible, and a review doubts none."""
    table = built(PATCHES, 8)
    (row,) = (row for key, row in table.rows.items() if key.startswith("convolution "))
    assert row.evidence.tried > 5
    assert "implausible" not in {reason for reason, _ in row.evidence.rejected}
    assert [doubt for doubt in review(review_table(table)) if doubt.level == "wrong"] == []


@HOPPER
def test_experts_have_a_row_of_candidates_that_agree(built: Callable[..., Table]) -> None:
    """Dozens of tiles were tried, and none computed something else than the library."""
    rows = built(EXPERTS, 1024).rows
    ((key, row),) = ((key, row) for key, row in rows.items() if key.startswith("grouped_mm "))
    assert " over=m m=1024 n=512 k=1024 bf16 " in key
    assert row.evidence.tried > 20
    assert "wrong" not in {reason for reason, _ in row.evidence.rejected}


@pytest.fixture
def serve(result_of: ResultOf, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``serve(table, size, on_miss)``: serve the model of `built`, as near to float32 as eager."""

    def serve(table: Table, size: int, on_miss: str) -> dict[str, Any]:
        path = tmp_path / "served.json"
        write(path, table)
        words = (f"{tmp_path / 'model.py'}:Model", size, path, on_miss)
        found = result_of(tmp_path / "caches", "tests/programs/serve_reductions.py", *words)
        assert found["error"] <= 1.5 * found["eager"] + 1e-3
        return found

    return serve


def test_splits_are_measured_with_their_regions_and_forced(
    built: Callable[..., Table], serve: Callable[..., dict[str, Any]]
) -> None:
    """Each number of parts has a time and computes the same; the winner is served unmeasured.

    Two kernels for each reduction that is split, fewer where it is not.
    """
    table = built(POOLED, 1370)
    rows = {key: row for key, row in table.rows.items() if key.startswith("split ")}
    assert len(rows) == 2
    for key, row in rows.items():
        assert (row.evidence.tried, row.evidence.rejected) == (4, ()), key
        assert row.evidence.library_us is not None
        assert len(row.evidence.ranking.split(";")) == 4, key
    found = serve(table, 1370, "strict")
    assert (found["sites"], found["hits"]["split"]) == ({}, 2)
    for parts in (1, 2):
        forced = {key: replace(row, winner=split_into(parts)) for key, row in rows.items()}
        found = serve(replace(table, rows={**table.rows, **forced}), 1370, "fallback")
        assert found["hits"]["split"] == 2
        count = len(found["kernels"])
        assert (count < 5) if parts == 1 else (count == 5)


def test_both_ways_of_a_reduction_are_measured_and_forced(
    built: Callable[..., Table], serve: Callable[..., dict[str, Any]]
) -> None:
    """Both kernels have a time and compute the same; the winner is served unmeasured."""
    ways = {PERSISTENT: "triton_per", LOOPED: "triton_red"}
    table = built(NORMS, 8192)
    rows = {key: row for key, row in table.rows.items() if key.startswith("reduction ")}
    assert rows
    for key, row in rows.items():
        assert (row.evidence.tried, row.evidence.rejected) == (2, ()), key
        assert row.evidence.library_us is not None

    def kernels(found: dict[str, Any]) -> list[str]:
        return [name for name in found["kernels"] if name in ways.values()]

    found = serve(table, 8192, "strict")
    assert found["sites"] == {}
    assert found["hits"]["reduction"] == len(kernels(found)) == len(rows)
    for way, name in ways.items():
        forced = {key: replace(row, winner=way) for key, row in rows.items()}
        found = serve(replace(table, rows={**table.rows, **forced}), 8192, "fallback")
        assert set(kernels(found)) == {name}


RELU = "tests/programs/models/vit_mlp.py:Relu"
SERVE_RELU = """
import json, sys, torch, warmup
from torch.profiler import ProfilerActivity, profile
from warmup.inductor import connect
from warmup.models.loading import load_model
model = load_model(sys.argv[1]).module.eval().cuda()
torch.manual_seed(0)
x = torch.randn(8, 1370, 768, device="cuda", dtype=torch.bfloat16)
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[2], on_miss=sys.argv[3], audit_log=sys.argv[4])
    served = torch.compile(model, dynamic=False)
    served(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        found = served(x)
        torch.cuda.synchronize()
    handle.close()
    expected = model.float()(x.float())
kernels = [event.name for event in profiled.events()
    if event.device_type == torch.autograd.DeviceType.CUDA]
print("RESULT", json.dumps({"kernels": kernels, "sites": dict(sites),
    "error": ((found - expected).norm() / expected.norm()).item()}))
"""


def test_what_a_row_says_about_fusion_is_what_runs(
    build: Build, result_of: ResultOf, tmp_path: Path
) -> None:
    """A product with ReLU behind a view launches as many kernels as its evidence says.

    A template's winner is then forced fused, and not fused; nothing is measured.
    """
    build(tmp_path, "--model", RELU, "--seqlens", 1370)
    table = read(tmp_path / "t.json")
    ((key, row),) = ((key, row) for key, row in table.rows.items() if key.startswith("addmm "))
    is_template = row.winner.family is Family.TEMPLATE
    assert (row.evidence.scope, row.evidence.library_kernels) == (Scope.FUSED, 2)
    # As the driver reports them.
    assert (row.evidence.registers is not None) == is_template
    assert (row.evidence.spills is not None) == is_template

    def serve(name: str, on_miss: str, kernels: int | None) -> None:
        log = tmp_path / f"{name}.jsonl"
        words = (RELU, tmp_path / name, on_miss, log)
        found = result_of(tmp_path / f"caches-{name}", "-c", SERVE_RELU, *words)
        events = [json.loads(line)["event"] for line in log.read_text("utf-8").splitlines()]
        assert len(found["kernels"]) == kernels
        assert (found["sites"], "policy.contradicted" in events) == ({}, False)
        assert found["error"] < 2e-2

    serve("t.json", "strict", row.evidence.kernels)
    if not is_template:
        pytest.skip("the library's kernel won on this device, and nothing is fused into it")
    for fused, kernels in ((True, 1), (False, 2)):
        forced = replace(row, winner=replace(row.winner, fused=fused))
        write(tmp_path / f"{fused}.json", replace(table, rows={**table.rows, key: forced}))
        # A fallback: the activation's own kernel has no launch row where the winner was fused.
        serve(f"{fused}.json", "fallback", kernels)


SERVE_FEW = """
import collections, json, sys, torch, warmup
from warmup.inductor import connect
worst = 0.0
linear = torch.nn.Linear(4096, 4096, bias=False, device="cuda", dtype=torch.bfloat16)
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[1], on_miss="strict")
    served = torch.compile(linear, dynamic=False)
    for rows in (1, 8, 33):
        x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
        found, expected = served(x), x.float() @ linear.weight.float().T
        worst = max(worst, ((found - expected).norm() / expected.norm()).item())
    hits = collections.Counter(key.split()[0] for key in handle.report().hits)
    handle.close()
print("RESULT", json.dumps({"sites": dict(sites), "hits": hits, "worst": worst}))
"""


def test_every_template_for_few_rows_is_right_and_is_served(
    build: Build, result_of: ResultOf, tmp_path: Path
) -> None:
    """No candidate of the templates is rejected: its output is checked before its time counts."""
    words = ("--model", "examples/products.py:Plain", "--dims", "n=4096;k=4096;m=1,8,33")
    lines = build(tmp_path, *words)["problems"]
    products = [line["candidates"] for line in lines if line["key"].startswith("mm ")]
    own = [[one for one in each if "triton::warmup_mm_" in one["choice"]] for each in products]
    # Of 33 rows and the same padded to 40, both timed, the report has the product of the winner.
    assert sorted(map(len, own)) == [4, 7, 10]
    assert [one for each in own for one in each if one["rejection"] is not None] == []
    found = result_of(tmp_path / "served", "-c", SERVE_FEW, tmp_path / "t.json")
    # Whether the 33 rows are padded is asked too.
    assert (found["sites"], found["hits"]) == ({}, {"mm": 3, "pad": 1})
    assert found["worst"] < 1e-2


FACTORS = "n=1024 k=2048 {} a=row b=col"
BY_ROW = f"scaled_mm m=16 {FACTORS.format('f8_e4m3fn')} scale=f32[16,1]:f32[1,1024] accum=fast"
BY_TENSOR = f"scaled_mm m=16 {FACTORS.format('f8_e4m3fn')} scale=f32[]:f32[]"
SCALED = "mul(f32[64,1]),mul(f32[1024]),to(f32)"
KEYS = {
    "rows": f"{BY_ROW} out=bf16 | epilogue=none",
    "tensor": f"{BY_TENSOR} out=bf16 | epilogue=silu",
    "int8": f"int_mm m=64 {FACTORS.format('i8')} out=i32 | epilogue={SCALED}",
}


@HOPPER
def test_products_in_8_bits_have_rows_from_keys_alone(build: Build, tmp_path: Path) -> None:
    """The library is timed too: a build without its time would take any template.

    Against operands dequantized in float32 every candidate that ran is right, persistent TMA with
    scales in its epilogue is tried, and an epilogue is measured with its product.
    """
    misses = tmp_path / "misses.json"
    problems = [
        {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1} for key in KEYS.values()
    ]
    misses.write_text(json.dumps({"schema": 1, "digests": [], "problems": problems}))
    problems = build(tmp_path, "--problems", misses)["problems"]
    rows, built = read(tmp_path / "t.json").rows, {one["key"]: one for one in problems}
    for name, key in KEYS.items():
        evidence, candidates = rows[key].evidence, built[key]["candidates"]
        assert evidence.library_us is not None, name
        assert evidence.library_us >= evidence.time_us, name
        assert evidence.gbps is not None, name
        assert {one["rejection"] for one in candidates} <= {None, "launch", "compile"}, name
        if name != "rows":
            assert evidence.scope is Scope.FUSED, name
        if name != "int8":
            uid = "triton::scaled_mm_device_tma_epilogue_scaling"
            assert any(one["choice"].startswith(uid) and one["time_us"] for one in candidates), name


@HOPPER
@pytest.mark.parametrize(("model", "op"), [("Fp8", "scaled_mm"), ("Int8", "int_mm")])
def test_a_gated_mlp_in_8_bits_is_built_and_served(
    build: Build, result_of: ResultOf, tmp_path: Path, model: str, op: str
) -> None:
    """Its three products have rows, both gates measured fused; served strictly, nothing misses."""
    build(tmp_path, "--model", f"tests/programs/models/eight_bit_ffn.py:{model}", "--seqlens", 32)
    path = tmp_path / "t.json"
    rows = [row for key, row in read(path).rows.items() if key.startswith(op)]
    assert len(rows) == 3
    assert sum(row.evidence.scope is Scope.FUSED for row in rows) >= 2
    case = {"table": str(path), "seqlens": [32], "mode": "default", "model": model.lower()}
    words = ("tests/programs/serve_block.py", json.dumps({**case, "uncovered": "forbid"}))
    found = result_of(tmp_path / "serve", *words)
    assert (found["benchmarker"], found["autotuner"]) == (0, 0)
    assert (found["misses"], found["uncovered"], found["unused"]) == ({}, {}, [])
    assert max(found["errors"]) < 5e-2


def test_pad_decisions_are_those_of_their_regions(
    build: Build, start: Callable[..., Any], tmp_path: Path
) -> None:
    """Linear(3420 -> 1280): both ways are compiled, timed and compared with a reference.

    The times of inductor's own calls are kept. A server hits all rows, strictly and without a
    benchmark: no row of the other way is left in the table.
    """
    model = ("--model", "examples/mlp.py:VisionLinear", "--seqlens", "560,2048", "--no-pad-weights")
    document = build(tmp_path, *model)
    table = read(tmp_path / "t.json")
    pads = {key: row for key, row in table.rows.items() if key.startswith("pad ")}
    assert sorted(key.split()[2] for key in pads) == ["m=2048", "m=560"]
    for row in pads.values():
        assert row.evidence.scope is Scope.FUSED
        assert sorted(name for _, name in ranked(row.evidence.ranking)) == ["as_is", "padded"]
        assert sorted(name for _, name in ranked(row.evidence.bare_ranking)) == ["as_is", "padded"]
        assert row.evidence.error is not None
    assert [key for key in document["not_fused"] if key.startswith("pad ")] == []
    log = tmp_path / "audit.jsonl"
    words = ("-m", "warmup", "check", tmp_path / "t.json", "--prime", *model)
    done = start(tmp_path / "check", *words, WARMUP_AUDIT_LOG=str(log))
    assert done.returncode == 0, done.stderr
    found = audit([log])
    assert set(found.hits) == set(table.rows)
    assert (found.misses, dict(found.uncovered)) == ((), {})
