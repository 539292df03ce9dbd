"""One table for a model as it is and with padded weights: built, served, compared, primed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest
from forked_python import run_forked
from own_processes import ROOT, Built

from warmup.serving.audit import audit
from warmup.table.store import read

pytestmark = pytest.mark.nightly

AS_IS = "packed_linear m=8 n=99 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue=relu"
PADDED = "packed_linear m=8 n=100 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue=none"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(weighed: Built, head: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run("check", "{table}", ...)``: run warmup on the CPU for the model and 8 rows."""
    folder = tmp_path_factory.mktemp("both")

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        plain = {name: text for name, text in os.environ.items() if not name.startswith("WARMUP_")}
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        spelled = [word.format(table=weighed[0]) for word in words]
        spelled += ["--model", head, "--device", "cpu", "--seqlens", "8"]
        environment = {**plain, "PYTHONPATH": str(ROOT), **caches, **variables}
        return run_forked("-m", "warmup", *spelled, env=environment, cwd=folder)

    return run


def test_a_build_runs_each_bucket_both_ways_and_says_so(weighed: Built) -> None:
    """As it is, then padded: each asks for its own rows, and agrees with eager; how to serve it."""
    said, lines = weighed[1], ["seqlen=8", "seqlen=8, weights padded"]
    buckets = said["document"]["buckets"]
    ways = [(one["weights_padded"], one["keys"]) for one in buckets]
    assert ways == [(False, [AS_IS]), (True, [PADDED])]
    assert all(one["error"] < 1e-6 for one in buckets)
    begun = dict.fromkeys(line.partition(":")[0] for line in said["progress"])
    assert [line for line in begun if line.startswith("seqlen=")] == lines
    closing = [line.partition("  ")[0] for line in said["text"] if line.startswith("seqlen=")]
    assert closing == lines
    (how,) = [line for line in said["text"] if line.startswith("to serve with padded")]
    assert how == (
        'to serve with padded weights: warmup.install("head.json", model=model); '
        "without model=, the rows for unpadded weights are used"
    )


def test_both_models_are_served_without_a_miss(weighed: Built) -> None:
    """Strictly, right, and without the rows of the other way; without model= one line says so."""
    rows = {key for key in read(weighed[0]).rows if not key.startswith("weight ")}
    told = "weights stay unpadded; structures that install(table, model=model) would pad: "
    for way, key, padded, log in (
        ("as_is", AS_IS, None, [f"{told}1 (99 features to 100)"]),
        ("prepared", PADDED, ["100"], []),
    ):
        said = weighed[1][way]
        assert (said["hits"], said["misses"], said["padded"]) == ([key], {}, padded), way
        assert (said["log"], set(said["unused"])) == (log, rows - {key}), way
        assert said["error"] < 1e-6, way
    assert weighed[1]["prepared"]["sizes"] == [[99, 64], [99]]


def test_a_comparison_serves_both_ways(run: Run) -> None:
    """Each variant hits its row, misses none, and agrees with eager; a remark says what it pads."""
    words = ("--table", "{table}", "--variants", "table,table-padded")
    done = run("compare", "--freezing", *words, "--rounds", "6", "--json")
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout)
    starts = {one["name"]: one["start"] for one in compared["variants"]}
    cells = {one["name"]: one for one in compared["buckets"][0]["variants"]}
    for name in ("table", "table-padded"):
        assert (starts[name]["hits"], starts[name]["misses"]) == (1, 0)
        assert cells[name]["agrees"]
    assert compared["remarks"] == [
        "table-padded: groups of weights padded: 1, 0.0 MiB more (1.01%)"
    ]


def test_priming_compiles_what_one_way_of_serving_asks_for(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As with the model given to install, which is said, or as without it."""
    for words, asked, said in (
        (
            (),
            PADDED,
            ["padded    groups of weights: 1, as install(table, model=model) pads them at serving"],
        ),
        (("--no-pad-weights",), AS_IS, []),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        log = tmp_path / "audit.jsonl"
        done = run("check", "{table}", "--prime", "--freezing", *words, WARMUP_AUDIT_LOG=str(log))
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line.startswith("padded")] == said, (
            words,
            asked,
            said,
        )
        assert audit([log]).hits == {asked: 1}, (words, asked, said)
