"""`Bench`: starts of vLLM on a CPU, each in processes of its own, for the tests of engines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from own_processes import codes_of
from tiny_llama import TINY_LLAMA

from warmup import AuditReport, audit

ENGINES = Path(__file__).resolve().parent / "engines"
GPULIKE = ENGINES / "gpulike"
SIZES = "[2]"
WITHOUT_PLUGIN = {"VLLM_PLUGINS": "gpulike"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True)
class Served:
    """What one start of the engine printed, and the audit of its log."""

    text: str
    said: dict[str, Any]
    audit: AuditReport


@dataclass(frozen=True)
class Bench:
    """A folder with the model; each start of the engine goes on with the caches before it."""

    folder: Path

    def environment(self, cache: str, **variables: str) -> dict[str, str]:
        paths = [str(ENGINES.parents[1]), str(GPULIKE)]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "VLLM_CACHE_ROOT": str(self.folder / cache),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / cache / "inductor"),
            "XDG_CACHE_HOME": str(self.folder / "user"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # vLLM gives its worker fewer threads than torch has at first, and a table of a CPU is
            # for a number of threads.
            "OMP_NUM_THREADS": "1",
            "GPULIKE": "1",
            **variables,
        }

    def call(self, cache: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self._share_model_facts(self.folder / cache)
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment(cache, **variables),
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def warmup(self, *words: str) -> str:
        """Run warmup's command line with a policy that freezes nothing; return its stdout."""
        done = self.call("warmup", str(GPULIKE / "choices_for_inputs.py"), *words)
        codes = codes_of(words)
        if "build" in words:
            codes.add(1)  # a noisy machine
        assert done.returncode in codes, done.stderr[-3000:]
        return done.stdout

    def serve(
        self, name: str, cache: str, table: Path | None, *, run: bool = False, **variables: str
    ) -> Served:
        """Start the engine with *table* through the plugin, or through `warmup run` with *run*."""
        log = self.folder / f"{name}.jsonl"
        program = [str(ENGINES / "serve_vllm.py"), str(self.folder / "model"), SIZES]
        if run:
            options = ("--table", str(table), "--audit-log", str(log))
            program = ["-m", "warmup", "run", *options, "--", sys.executable, *program]
        elif table is not None:
            variables |= {"WARMUP_TABLE": str(table), "WARMUP_AUDIT_LOG": str(log)}
        done = self.call(cache, *program, **variables)
        text = done.stdout + done.stderr
        assert done.returncode == 0, text[-4000:]
        said = re.search(r"^SAID (.*)$", done.stdout, re.MULTILINE)
        assert said is not None, text[-4000:]
        log.touch()
        return Served(text, json.loads(said[1]), audit([log]))

    def _share_model_facts(self, cache: Path) -> None:
        # What vLLM keeps of a model's class, as that it generates text: a process of its own for
        # each empty cache, which imports vLLM for 12 s, and has no part in compiling.
        cache.mkdir(exist_ok=True)
        kept = self.folder / "modelinfos"
        kept.mkdir(exist_ok=True)
        if not (cache / kept.name).exists():
            (cache / kept.name).symlink_to(kept)

    def keys(self, cache: str) -> list[str | None]:
        """Return the table that each of vLLM's caches of graphs names."""
        found = (self.folder / cache).rglob("cache_key_factors.json")
        texts = [re.search(r'"warmup_table": "(.*)"', path.read_text()) for path in found]
        return sorted((text and text[1] for text in texts), key=str)


def make_bench(folder: Path) -> Bench:
    """Return a bench in *folder*, which gets the config of a Llama of two layers."""
    folder.joinpath("model").mkdir()
    folder.joinpath("model", "config.json").write_text(json.dumps(TINY_LLAMA))
    return Bench(folder)
