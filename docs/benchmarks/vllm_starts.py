"""Measures starts of vLLM on a CPU: without a table and with one, from cold and from warm caches.

    python docs/benchmarks/vllm_starts.py --out RESULTS.json

It runs where vLLM and warmup are installed. The model is a Llama of four layers, 1024 wide, with
random weights; the engine is that of tests/engines, which makes vLLM compile on a CPU as on a GPU.
The table is built first, by `warmup build --from-vllm`. Each start is a process of its own. Cold:
all caches are empty; warm: they are those of the start before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import write

from warmup import audit

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / "tests" / "engines"
SIZES = [1, 8, 64]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# As in tests/engines/serve_vllm.py.
ENGINE = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "seed": 0}
ENGINE |= {"max_num_batched_tokens": 128, "kv_cache_memory_bytes": 64 << 20}


@dataclass(frozen=True)
class Bench:
    """A folder with the model, the table and the caches."""

    folder: Path

    @property
    def table(self) -> Path:
        """The table that `build` writes."""
        return self.folder / "table.json"

    def build(self) -> float:
        """Build the table from vLLM itself; return the seconds that this took."""
        (self.folder / "model").mkdir()
        (self.folder / "model" / "config.json").write_text(json.dumps(LLAMA))
        words = ["-m", "warmup", "build", "--device", "cpu", "--from-vllm", "model"]
        words += ["--compile-sizes", ",".join(map(str, SIZES)), "--out", str(self.table)]
        words += ["--engine-args", json.dumps(ENGINE)]
        started = time.monotonic()
        # 1: rows of a noisy machine, which answer all the same.
        self._call("build", words, {"VLLM_PLUGINS": "gpulike"}, {0, 1})
        return time.monotonic() - started

    def start(self, caches: str, table: Path | None, log: Path) -> dict[str, Any]:
        """Start the engine once, and let it generate; return its seconds and counts."""
        settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        if table is not None:
            settings |= {"WARMUP_TABLE": str(table), "WARMUP_AUDIT_LOG": str(log)}
        words = [str(ENGINES / "serve_vllm.py"), "model", json.dumps(SIZES)]
        started = time.monotonic()
        stdout = self._call(caches, words, settings, {0})
        wall = time.monotonic() - started
        line = next(line for line in stdout.splitlines() if line.startswith("SAID "))
        said = json.loads(line.removeprefix("SAID "))
        log.touch()
        report = audit([log])
        return {
            "wall_s": round(wall, 1),
            "engine_s": said["seconds"],
            # From a warm cache torch's counters are those that were saved with the graphs.
            "benchmarks": said["benchmarks"] if said["compiled"] else None,
            "graphs_compiled": said["compiled"],
            "graphs_loaded": said["loaded"],
            "hits": sum(report.hits.values()),
            "misses": dict(report.reasons),
            "cached_decisions": report.cached_decisions,
            "foreign": dict(report.foreign),
            "tokens": said["tokens"],
        }

    def _call(self, caches: str, words: list[str], settings: dict[str, str], good: set[int]) -> str:
        paths = [str(ROOT), str(ENGINES / "gpulike")]
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "VLLM_CACHE_ROOT": str(self.folder / caches),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / caches / "inductor"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # vLLM gives its worker fewer threads than torch has at first, and a table of a CPU is
            # for a number of threads.
            "OMP_NUM_THREADS": "1",
            "GPULIKE": "1",
            **settings,
        }
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode not in good:
            end = (done.stdout + done.stderr)[-4000:]
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{end}")
        return done.stdout


def main() -> None:
    """Build the table, measure the four starts, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    import torch
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        built = bench.build()
        starts = []
        for name, table in (("own tuning", None), ("table", bench.table)):
            for state in ("cold", "warm"):
                log = Path(folder) / f"{name}-{state}.jsonl".replace(" ", "-")
                start = bench.start(name.replace(" ", "-"), table, log)
                starts.append({"start": f"{name}, {state}", **start})
    machine = {
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "vllm": vllm.__version__,
    }
    result = {
        "machine": machine,
        "seqlens": SIZES,
        "build_s": round(built, 1),
        "starts": starts,
    }
    write(asked.out, result)
    for start in starts:
        counts = {key: start[key] for key in ("benchmarks", "hits", "misses", "cached_decisions")}
        print(f"{start['start']}: {start['wall_s']} s, engine {start['engine_s']} s, {counts}")  # noqa: T201


if __name__ == "__main__":
    main()
