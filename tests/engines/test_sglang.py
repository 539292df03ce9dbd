"""SGLang's three compiling paths on a CPU: its engine for one, its own functions for the others."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import TINY_LLAMA

from warmup import AuditReport, audit
from warmup.table.store import read

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason="SGLang is not installed: the step for engines in .ci/nightly does that",
)
LLAMA = {**TINY_LLAMA, "num_hidden_layers": 1}


@dataclass(frozen=True)
class Served:
    """What one start of the program printed, and the audit of its log."""

    code: int
    text: str
    said: dict[str, Any]
    audit: AuditReport

    @property
    def counts(self) -> tuple[int, int, int, int]:
        audited = self.audit
        return (
            audited.runs,
            sum(audited.hits.values()),
            audited.miss_count,
            sum(audited.uncovered.values()),
        )


@dataclass(frozen=True)
class Bench:
    """A folder for the tables and the logs; what has been served is remembered."""

    folder: Path
    served: dict[str, Served] = field(default_factory=dict)

    def call(self, cache: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE.parents[1]),
            "SGLANG_CACHE_DIR": str(self.folder / cache),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / cache / "inductor"),
            "XDG_CACHE_HOME": str(self.folder / "user"),
            "OMP_NUM_THREADS": "1",  # a table of a CPU is for a number of threads
            **variables,
        }
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def model(self, path: str) -> list[str]:
        """Return the argument that names the engine's model; the other paths have their own."""
        return [str(self.folder / "model")] if path == "cpu" else []

    def table(self, path: str) -> Path:
        """Build a table from the program that compiles as *path* does."""
        table = self.folder / f"{path}.json"
        program = [sys.executable, str(HERE / "serve_sglang.py"), path, *self.model(path)]
        words = ("build", "--device", "cpu", "--set", "wait_for_quiet=0", "--out", str(table))
        gpulike = [str(HERE / "gpulike" / "choices_for_inputs.py")]
        warmup = ["-m", "warmup"] if path == "cpu" else gpulike
        done = self.call(f"{path}-build", *warmup, *words, "--", *program)
        assert done.returncode in {0, 1, 4}, done.stderr[-3000:]  # 1 and 4: a noisy machine
        assert table.exists(), done.stderr[-3000:]
        return table

    def serve(self, name: str, path: str, table: Path, **variables: str) -> Served:
        """Start the program with *table* in the environment, as an engine's user does."""
        log = self.folder / f"{name}.jsonl"
        log.touch()
        variables |= {"WARMUP_TABLE": str(table), "WARMUP_AUDIT_LOG": str(log)}
        done = self.call(name, str(HERE / "serve_sglang.py"), path, *self.model(path), **variables)
        said = re.search(r"^SAID (.*)$", done.stdout, re.MULTILINE)
        text = done.stdout + done.stderr
        return Served(done.returncode, text, json.loads(said[1]) if said else {}, audit([log]))

    def built(self, path: str) -> Served:
        """Build a table for *path* and serve from it, once for all tests."""
        if path not in self.served:
            self.served[path] = self.serve(path, path, self.table(path))
        served = self.served[path]
        assert served.code == 0, served.text[-4000:]
        return served


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("sglang")
    folder.joinpath("model").mkdir()
    folder.joinpath("model", "config.json").write_text(json.dumps(LLAMA))
    return Bench(folder)


@pytest.fixture(scope="module")
def untabled(bench: Bench) -> Served:
    """The decode path with a table in the environment, but without the plugin."""
    bench.built("decode")
    table = bench.folder / "decode.json"
    served = bench.serve("untabled", "decode", table, SGLANG_PLUGINS="another")
    assert served.code == 0, served.text[-4000:]
    return served


def test_each_path_is_answered_from_its_table(bench: Bench) -> None:
    """Two GEMMs for each of two static sizes of decode, and two of the first piece of prefill.

    The second piece is the same graph, from inductor's cache. Of SGLang's CPU engine the
    scheduler's process alone installs, and its five GEMMs are hits.
    """
    for path, hits in (("decode", 4), ("prefill", 2), ("cpu", 5)):
        served = bench.built(path)
        assert served.counts == (1, hits, 0, 0), path
        assert path == "cpu" or served.said["benchmarks"] == 0, path
    assert [len(tokens) for tokens in bench.built("cpu").said["tokens"]] == [4, 4]
    # SGLang marks the size of a prefill as dynamic, and tells torch no end.
    assert all(" m=2.. " in key for key in read(bench.folder / "prefill.json").rows)
    decode = bench.built("decode")
    assert "Executed general plugin: warmup" in decode.text
    assert decode.said["installed"] == [False, True]  # at the first compile


def test_without_the_plugin_in_sglang_plugins_there_is_no_table(
    bench: Bench, untabled: Served
) -> None:
    """SGLANG_PLUGINS without warmup: nothing is installed, the mode measures, sums are the same."""
    assert untabled.said["installed"] == [False, False]
    assert untabled.audit.runs == 0
    assert untabled.said["benchmarks"] > 0
    assert bench.built("decode").said["sums"] == pytest.approx(untabled.said["sums"], rel=1e-3)


def test_sglangs_assignments_of_switches_are_overruled_with_a_word(bench: Bench) -> None:
    """The mode's and the assigned switches of both GPU paths are events in the log."""
    assert {"max_autotune", "coordinate_descent_tuning"} <= overruled(bench, "decode")
    assert {"combo_kernels", "benchmark_combo_kernel"} <= overruled(bench, "prefill")


def overruled(bench: Bench, path: str) -> set[str]:
    bench.built(path)
    lines = (bench.folder / f"{path}.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return {each["option"] for each in events if each["event"] == "policy.overruled"}


def test_an_error_that_the_loader_swallows_is_heard_and_ends_the_first_compile(
    bench: Bench,
) -> None:
    """With ``strict`` and a table that cannot be read: stderr, the audit and the compile say so."""
    absent = bench.folder / "absent.json"
    served = bench.serve("strict", "decode", absent, WARMUP_ON_MISS="strict")
    assert "Failed to execute general plugin: warmup" in served.text
    assert "warmup plugin: no table in process" in served.text
    assert (served.audit.runs, served.audit.failed) == (0, 1)
    assert served.code != 0
    assert re.search(r"compile_wrapper(.|\n)*TableNotFoundError", served.text)
