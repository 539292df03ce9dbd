"""Models served from a table on a GPU: all that the build asked hits, and nothing is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.registry import kind_of
from warmup.serving.audit import audit
from warmup.table.store import read

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
Build = Callable[..., dict[str, Any]]
ResultOf = Callable[..., dict[str, Any]]
Run = Callable[..., str]
Serve = Callable[..., dict[str, Any]]
Start = Callable[..., subprocess.CompletedProcess[str]]
MLP = """
import json, sys, torch, warmup
sys.path.insert(0, "examples")
from mlp import MLP
from warmup.inductor import connect
torch.manual_seed(0)
model = MLP().eval().cuda().bfloat16()
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[1], on_miss=sys.argv[2])
    served = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)
    errors = []
    for seqlen in map(int, sys.argv[3].split(",")):
        x = torch.randn(seqlen, 256, device="cuda", dtype=torch.bfloat16)
        expected = model(x)
        errors.append(((served(x) - expected).norm() / expected.norm()).item())
report = handle.report()
handle.close()
print("RESULT", json.dumps({"error": max(errors), "sites": dict(sites),
    "hits": sum(report.hits.values()), "keys": sorted(report.hits),
    "misses": sum(report.misses.values()), "unused": len(report.unused)}))
"""


def test_an_mlp_is_built_and_served_by_the_command_line(
    build: Build, result_of: ResultOf, tmp_path: Path
) -> None:
    """With empty caches every row hits once. An unseen size is a counted miss, and still right."""
    build(tmp_path, "--model", "examples/mlp.py:MLP", "--seqlens", "64,560", "--dtype", "bf16")
    table = tmp_path / "t.json"
    found = result_of(tmp_path / "strict", "-c", MLP, table, "strict", "64,560")
    assert found["keys"] == sorted(read(table).rows)
    assert found["hits"] == len(found["keys"])
    assert sum(key.startswith("addmm ") for key in found["keys"]) == 4
    assert (found["misses"], found["unused"], found["sites"]) == (0, 0, {})
    assert found["error"] < 2e-2
    found = result_of(tmp_path / "fallback", "-c", MLP, table, "fallback", "96")
    # Two library products, and the two kernels that do what their epilogues did.
    assert (found["hits"], found["misses"], found["sites"]) == (0, 4, {})
    assert found["error"] < 2e-2


@pytest.fixture(scope="module")
def serve(result_of: ResultOf) -> Serve:
    """``serve(folder, **case)``: serve a block in a fresh process, near to eager."""

    def serve(folder: Path, **case: Any) -> dict[str, Any]:
        words = json.dumps({"model": "small", "mode": "default", **case})
        found = result_of(folder, "tests/programs/serve_block.py", words)
        assert max(found["errors"]) < 2e-2
        return found

    return serve


def is_unmeasured(found: dict[str, Any]) -> bool:
    return (found["benchmarker"], found["autotuner"]) == (0, 0)


def is_complete(found: dict[str, Any]) -> bool:
    return is_unmeasured(found) and (found["misses"], found["uncovered"]) == ({}, {})


@pytest.fixture(scope="module")
def block(build: Build, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A table of the small block, unaligned inside, for two buckets; and what each bucket asked."""
    folder = tmp_path_factory.mktemp("table")
    model = ("--model", "examples/vision_block.py:small", "--seqlens", "64,256")
    document = build(folder, *model, "--input", "hidden_states=[seqlen,128]:bf16")
    return folder / "t.json", document["buckets"]


@pytest.mark.parametrize(
    "mode", ["default", "max-autotune", "max-autotune-no-cudagraphs", "max-autotune-gemm"]
)
def test_a_block_with_empty_caches_measures_nothing(
    serve: Serve, block: tuple[Path, list[Any]], tmp_path: Path, mode: str
) -> None:
    """RMSNorm, attention, SwiGLU: rows of every kind; all that the build asked hits.

    Whatever mode the caller keeps, and also with the weights padded where that pays.
    """
    table, buckets = block
    rows = json.loads(table.read_text())["rows"]
    assert sorted(rows) == ["gemm", "launch", "pad", "reduction", "weight"]
    asked: dict[bool, set[str]] = {False: set(), True: set()}
    for bucket in buckets:
        asked[bucket["weights_padded"]].update(bucket["keys"])
    case = {"table": str(table), "seqlens": [64, 256], "uncovered": "forbid"}
    found = serve(tmp_path / "as it is", **case, mode=mode)
    assert is_complete(found)
    assert set(found["hits"]) == asked[False]
    if mode == "default":
        found = serve(tmp_path / "prepared", **case, prepared=True)
        assert is_complete(found)
        assert set(found["hits"]) == (asked[True] or asked[False])


def test_warm_caches_answer_under_the_same_table(
    serve: Serve, block: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    """A second process with the first one's caches measures nothing and is not silent."""
    case = {"table": str(block[0]), "seqlens": [64], "uncovered": "forbid"}
    serve(tmp_path, **case)
    found = serve(tmp_path, **case)
    assert is_unmeasured(found)
    assert not found["silent"]
    assert found["from_cache"] > 0


def test_an_unseen_bucket_is_counted_and_not_measured(
    serve: Serve, block: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    """A size that was not built falls back in every kind; without a table the start measures."""
    case = {"table": str(block[0]), "seqlens": [96], "on_miss": "fallback"}
    found = serve(tmp_path / "unseen", **case)
    assert is_unmeasured(found)
    assert {key.split(" ")[0] for key in found["misses"]} >= {"addmm", "launch"}
    found = serve(tmp_path / "bare", table=None, seqlens=[256])
    assert min(found["benchmarker"], found["autotuner"]) > 0


def test_other_products_and_a_convolution_are_not_measured(
    build: Build, serve: Serve, tmp_path: Path
) -> None:
    """int_mm, scaled_mm and a convolution have rows."""
    build(tmp_path, "--model", "tests/programs/models/mixed_ops.py:MixedOps", "--seqlens", 64)
    path = tmp_path / "t.json"
    rows = json.loads(path.read_text())["rows"]
    assert {key.split(" ")[0] for key in rows["gemm"]} >= {"int_mm", "scaled_mm"}
    assert len(rows["convolution"]) == 1
    case = {"table": str(path), "seqlens": [64], "model": "mixed", "uncovered": "forbid"}
    found = serve(tmp_path / "serve", **case)
    assert is_complete(found)
    assert found["unused"] == []


def test_kernels_of_the_user_are_measured_in_a_build_alone(run: Run, tmp_path: Path) -> None:
    """One in the graph and one outside: hits, the rows' configs, one launch a call."""
    printed = run(tmp_path, "tests/programs/serve_user_kernels.py", tmp_path / "steps")
    claims = json.loads(printed.splitlines()[-1])
    assert claims["holds"], claims


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_ranks_on_two_gpus_make_the_same_choices(
    start: Start, block: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    """Each GPU serves from the table built on the first one: same digest, hits and choices."""
    log = tmp_path / "audit.jsonl"
    case = {"table": str(block[0]), "seqlens": [64], "mode": "default", "model": "small"}
    done = start(
        tmp_path,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2),
        *("tests/programs/serve_block.py", json.dumps({**case, "uncovered": "forbid"})),
        WARMUP_AUDIT_LOG=str(log),
    )
    printed = [line.split("RESULT ")[1] for line in done.stdout.splitlines() if "RESULT " in line]
    first, second = sorted(map(json.loads, printed), key=lambda found: found["rank"])
    assert (first["rank"], second["rank"]) == ("0", "1"), done.stderr[-3000:]
    assert (first["digest"], first["hits"]) == (second["digest"], second["hits"])
    for found in (first, second):
        assert is_unmeasured(found)
        assert (found["misses"], found["collectives"]) == ({}, 0)
    audited = start(tmp_path, *("-m", "warmup", "audit", log, "--fail-on", "miss,diverged,silent"))
    assert audited.returncode == 0, audited.stdout


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_padded_calls_replay_the_graph_of_their_bucket(run: Run, tmp_path: Path, mode: str) -> None:
    """Six sizes in two buckets: each call replays a graph, and is right whatever its size."""
    found = json.loads(run(tmp_path, "tests/programs/serve_padded.py", mode).splitlines()[-1])
    assert (found["replays"], found["records"]) == (6, 0)
    assert found["artifacts"] == {"n=16": 1, "n=64": 1}
    assert found["outside"] == {}
    assert found["error"] < 5e-3


def test_ranges_are_served_from_their_rows(run: Run, tmp_path: Path) -> None:
    """Every row hits, nothing misses or is measured; a range has one artifact.

    A winner was timed along its range.
    """
    program = ("tests/programs/serve_ranges.py", "examples/mlp.py:MLP", tmp_path / "t.json")
    found = json.loads(run(tmp_path, *program, "cuda").splitlines()[-1])
    assert found["hits"] == found["keys"]
    assert (found["misses"], found["uncovered"]) == ({}, {})
    assert found["error"] < 5e-3
    assert found["artifacts"] == {"seqlen=1": 1, "seqlen=2..16": 1}
    along = [[size for size, _ in each] for each in found["along"].values() if each]
    assert along
    assert all(sizes == [2, 9, 16] for sizes in along)


def test_a_bundled_start_compiles_no_kernel_and_needs_no_compiler(
    build: Build, start: Start, tmp_path: Path
) -> None:
    """Neither Triton nor the C compiler made anything that the bundle does not hold."""
    model, given = "examples/vision_block.py:small", "hidden_states=[seqlen,128]:bf16"
    build(tmp_path, "--model", model, "--input", given, "--seqlens", "64,512", "--bundle")
    named = (model, tmp_path / "t.json", "64,512", "cuda", given)
    for compiler in ("", "false"):  # a compiler that fails is never asked
        variables = {"WARMUP_BUNDLE": "", **({"CC": compiler} if compiler else {})}
        caches = tmp_path / f"caches{compiler}"
        done = start(caches, "tests/programs/serve_bundle.py", *named, **variables)
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout)
        assert (found["refused"], found["compiled"]) == (None, [])
        assert (found["misses"], found["from_cache"]) == (0, 2)
        assert found["error"] < 0.02


def test_a_script_that_names_no_table_is_built_and_misses_nothing_afterwards(
    start: Start, tmp_path: Path
) -> None:
    """Static sizes, the range, launch configs, padding and the split reduction are hits.

    Launch configs are tuned in the program: they exist only there, no key of them can be rebuilt.
    Pad decisions and splits are measured when the program has ended, in their regions.
    """
    script, table = ROOT / "tests/programs/scripts/gpu_script.py", tmp_path / "t.json"
    words = ("-m", "warmup", "build", "--json", "--out", table, "--", sys.executable, script)
    done = start(tmp_path, *words)
    assert done.returncode in {0, 4}, done.stderr[-4000:]  # 4: a noisy machine
    first = json.loads(done.stdout)
    if first["changed_afterwards"]:  # other kernels follow, which the same command tunes
        done = start(tmp_path, *words)
        assert done.returncode in {0, 4}, done.stderr[-4000:]
    kinds = Counter(one["kind"] for one in first["tuned_in_program"])
    assert min(kinds["gemm"], kinds["launch"]) > 0
    rows = read(table).rows
    pads = [row for key, row in rows.items() if kind_of(key).name == "pad"]
    assert pads
    assert {row.evidence.scope for row in pads} == {"fused"}
    assert any(kind_of(key).name == "split" for key in rows)
    log = tmp_path / "audit.jsonl"
    served = ("run", "--table", table, "--audit-log", log, "--", sys.executable, script)
    done = start(tmp_path / "served", "-m", "warmup", *served)
    assert done.returncode == 0, done.stderr[-4000:]
    found = audit([log])
    assert [miss.key for miss in found.misses] == []
    assert found.uncovered == {}
    assert sum(found.hits.values()) > 0


ZOO = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("timm")), reason="needs transformers and timm"
)


@ZOO
@pytest.mark.parametrize("name", ["qwen2", "gpt2", "bert", "dit", "vit", "convnext"])
def test_a_model_of_other_packages_is_served_without_a_miss(
    start: Start, tmp_path: Path, name: str
) -> None:
    """Plain and tied heads, a Conv1D, LayerNorms that are shifted and scaled, images, convolutions.

    In strict mode nothing misses and nothing is measured; each built problem is a hit.
    """
    said = {}
    for do in ("build", "serve"):
        done = start(tmp_path / do, ROOT / "tests/programs/zoo.py", do, name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-4000:]
        said[do] = json.loads(done.stdout.split("RESULT ")[1])[name]
    built, served = said["build"], said["serve"]
    assert built["not_tuned"] == {}
    assert served["hits"]
    assert served["misses"] == served["benchmarks"] == {}
    assert served["clean"]
    assert served["error"] < 0.03


@ZOO
def test_a_model_of_the_zoo_is_raced_in_graphs_and_without(start: Start, tmp_path: Path) -> None:
    """Every variant is timed both ways after one start, and the table measures nothing."""
    options = ("--tiny", "--models", "bert", "--rounds", 6)
    done = start(tmp_path, "docs/benchmarks/zoo.py", "--out", tmp_path, *options)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "zoo-bert.json").read_text(encoding="utf-8"))
    assert found["failure"] is None
    assert set(found["race"]["launches"]) == {"cudagraph", "eager"}
    for raced in found["race"]["launches"].values():
        (bucket,) = raced["buckets"]
        timed = {each["name"] for each in bucket["variants"] if each["agrees"]}
        assert timed >= {"eager", "default", "max-autotune", "table"}
        (table,) = [each for each in raced["variants"] if each["name"] == "table"]
        assert (table["start"]["benchmarks"], table["start"]["misses"]) == (0, 0)
