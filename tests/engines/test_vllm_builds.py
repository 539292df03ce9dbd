"""Tables that vLLM itself builds on a CPU: one process, and two ranks."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from vllm_bench import IN_PROCESS, WITHOUT_PLUGIN, Bench, make_bench

from warmup.table.store import read


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("vllm"))


def build_from_vllm(bench: Bench, name: str, ranks: int = 1, **variables: str) -> str:
    """Build the table *name* by the engine itself; return what the command printed."""
    engine: dict[str, Any] = {"compile_sizes": [2], "tensor_parallel_size": ranks}
    engine |= {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "seed": 0}
    engine |= {"max_num_batched_tokens": 128, "kv_cache_memory_bytes": 64 << 20}
    command = ["build", "--from-vllm", f"model{json.dumps(engine)}", "--device", "cpu"]
    command += ["--set", "wait_for_quiet=0", "--out", f"{name}.json"]
    done = bench.call(name, "-m", "warmup", *command, **WITHOUT_PLUGIN, **variables)
    return done.stdout + done.stderr


def test_a_table_built_from_vllm_answers_everything(bench: Bench) -> None:
    """`build --from-vllm` starts the engine with random weights, and sends no request."""
    build_from_vllm(bench, "from_vllm")
    served = bench.serve("from_vllm", "served", bench.folder / "from_vllm.json", **IN_PROCESS)
    assert (sum(served.audit.hits.values()), served.audit.miss_count) == (16, 0)
    assert served.said["benchmarks"] == 0


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_each_of_two_ranks_asks_for_its_share(bench: Bench) -> None:
    """Two ranks ask the same keys, of half the model: what one measured is a hit in the other."""
    cores = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    said = build_from_vllm(bench, "ranks", 2, **cores)
    assert "hits 24, tuned in the program 8, left for the end 0" in said
    shares = {re.search(r" n=\d+ k=\d+ ", key)[0] for key in read(bench.folder / "ranks.json").rows}
    assert shares == {" n=256 k=256 ", " n=256 k=128 ", " n=704 k=256 ", " n=256 k=352 "}
