"""`warmup check --prime` with real compiles on CPU, each in a forked process of empty caches."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, Done, answer_of, python_in, warmup_in

from warmup.core.phases import Phase
from warmup.table.store import read, write

pytestmark = pytest.mark.long

NET = f"{MODELS / 'measuring.py'}:Net"
BATCHED = f"{MODELS / 'batched.py'}:Batched"
SERVE = """
import json, os, sys, warnings
import torch, warmup
sys.path.insert(0, sys.argv[1])
from {module} import {name}, example_inputs
warnings.simplefilter("ignore", warmup.StaleTableWarning)
os.environ["WARMUP_ALLOW_MISMATCH"] = "1"
with warmup.install("table.json", freezing=True) as handle, torch.no_grad():
    torch.compile({name}().eval(), dynamic=False)(*{inputs})
    report = handle.report()
print(json.dumps([sum(report.hits.values()), dict(report.miss_reasons), report.from_cache]))
"""


def prime(folder: Path, model: str, seqlens: str, *more: str, code: int = 0) -> Done:
    words = ("table.json", "--device", "cpu", "--prime", "--model", model, "--seqlens", seqlens)
    return warmup_in(folder, "check", "--freezing", *words, *more, code=code)


def serve(folder: Path, module: str, name: str, inputs: str) -> Any:
    """Serve one call from folder/table.json: hits, reasons of misses, graphs from the cache."""
    code = SERVE.format(module=module, name=name, inputs=inputs)
    return answer_of(python_in(folder, "-c", code, str(MODELS)).stdout)


@pytest.fixture(scope="module")
def folder(net: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of the measuring model, for 8 and 24 rows."""
    # Its layer is that of `net`, whose table has the row for 8 already.
    folder = tmp_path_factory.mktemp("net")
    shutil.copy(net[0], folder / "table.json")
    words = ("--model", NET, "--seqlens", "8,24", "--out", "table.json")
    warmup_in(folder, "build", "--device", "cpu", *words)
    return folder


def test_a_failing_bucket_does_not_stop_the_others(folder: Path) -> None:
    """8 hits, 16 has no row, 24 measures by itself: each reason is one line, and the code is 11.

    The phases of a bucket are those of its own compile,
    of which the second failed while it was lowered; each is rounded to a millisecond.
    """
    done = prime(folder, NET, "8,16,24", "--json", code=11)
    document, lines = json.loads(done.stdout), done.stderr.splitlines()
    buckets = document["buckets"]
    counts = [(len(each["misses"]), len(each["uncovered"]), each["hits"]) for each in buckets]
    assert (document["state"], counts) == ("partly", [(0, 0, 1), (1, 0, 0), (0, 1, 1)])
    assert [each["problem"] is None for each in buckets] == [True, False, False]
    miss, measured = [line for line in lines if line.startswith("error: ")]
    assert miss.startswith("error: bucket seqlen=16: no row answers `packed_linear m=16 ")
    assert "differs in m: row " in miss
    assert measured.startswith("error: bucket seqlen=24: measured at measuring.py:measure, which")
    before = document["phases_before"]
    assert {"import", "load", "install"} <= set(before)
    assert "tracing" not in before
    assert ["lowering" in each["phases"] for each in buckets] == [True, True, True]
    assert ["code_generation" in each["phases"] for each in buckets] == [True, False, True]
    wholes = [(each["seconds"], each["phases"]) for each in buckets]
    whole = sum(before.values()) + sum(seconds for seconds, _ in wholes)
    for seconds, parts in [*wholes, (whole, document["phases"])]:
        assert sum(parts.values()) == pytest.approx(seconds, abs=0.002 * len(Phase)), parts


def test_a_ready_table_is_primed(folder: Path) -> None:
    """With every bucket answered: code 0, and the table as it was."""
    table = folder / "table.json"
    before = table.read_bytes(), table.stat().st_mtime_ns
    done = prime(folder, NET, "8")
    said = [line for line in done.stderr.splitlines() if " unstable" not in line]  # a busy machine
    assert said == []
    assert "bucket    seqlen=8: 1 hit, 0 misses, 0 uncovered, 0 from cache" in done.stdout
    cold = re.search(r"start     ([0-9.]+) s, ([0-9.]+) of them for kernels", done.stdout)
    assert cold is not None, done.stdout
    assert float(cold[1]) > float(cold[2]) > 0, cold[0]  # the caches are empty
    assert (table.read_bytes(), table.stat().st_mtime_ns) == before


def test_a_table_of_another_torch_answers_no_lookup(folder: Path, tmp_path: Path) -> None:
    table = read(folder / "table.json")
    origin = replace(table.provenance, runtime=replace(table.provenance.runtime, torch="2.99.0"))
    write(tmp_path / "table.json", replace(table, provenance=origin))
    served = serve(tmp_path, "measuring", "Net", "(torch.randn(8, 32),)")
    assert served == [0, {"wrong_runtime": 1}, 0]


def test_a_server_and_the_next_check_find_primed_graphs_in_the_cache(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Nothing is lowered then; a miss that a server compiled does not pass as primed later."""
    shutil.copy(bundled[0] / "t.json", tmp_path / "table.json")
    prime(tmp_path, BATCHED, "8")
    assert serve(tmp_path, "batched", "Batched", "example_inputs(8)") == [0, {}, 1]
    (bucket,) = json.loads(prime(tmp_path, BATCHED, "8", "--json").stdout)["buckets"]
    assert bucket["cached"] == 1
    assert {"tracing", "aot", "caches", "first_calls"} <= set(bucket["phases"])
    assert set(bucket["phases"]).isdisjoint({"lowering", "scheduling", "code_generation"})
    missed = serve(tmp_path, "batched", "Batched", "example_inputs(24)")
    assert missed == [0, {"not_in_table": 1}, 0]
    done = prime(tmp_path, BATCHED, "24", "--on-miss", "fallback", "--json", code=11)
    (bucket,) = json.loads(done.stdout)["buckets"]
    assert (bucket["cached"], bucket["cached_misses"]) == (1, 1)
