"""`warmup compare` on CPU: real processes and compiles, with variants that fail in several ways."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked
from sample_tables import make_table

from warmup.bench.compare import CompareRequest
from warmup.bench.race import race
from warmup.cli import main
from warmup.core.errors import ModelError
from warmup.core.phases import Phase
from warmup.table.store import write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = f"{ROOT / 'examples' / 'mlp.py'}:MLP"
# Variants beside the example model, which has the same inputs and outputs.
OTHERS = f"""
import os, random, sys
import torch
sys.path.insert(0, {str(ROOT / "examples")!r})
from mlp import MLP, example_inputs

class Same(MLP):
    pass

class Doubled(MLP):
    def forward(self, x):
        return 2 * super().forward(x)

class Narrow(MLP):
    def forward(self, x):
        return super().forward(x)[:, :1]

class Raising(MLP):
    def forward(self, x):
        raise RuntimeError("no such weight")

class Dying(MLP):
    def forward(self, x):
        print("about to die", file=sys.stderr, flush=True)
        os._exit(7)

class Hanging(MLP):
    def forward(self, x):
        import time
        time.sleep(600)

class Unseeded(MLP):
    def __init__(self):
        super().__init__()
        torch.nn.init.constant_(self.down.bias, random.random())
"""
ALSO = {
    "same": "Same+eager",
    "doubled": "Doubled+eager",
    "narrow": "Narrow+eager",
    "dying": "Dying+eager",
    "broken": "Raising+table",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``warmup compare`` in *folder*."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    words = ("-m", "warmup", "compare", "-v", "--device", "cpu", "--freezing", *arguments)
    return run_forked(*words, env={**plain, "PYTHONPATH": str(ROOT)}, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the other models, and a table of another device."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "others.py").write_text(OTHERS)
    write(folder / "other.json", make_table())
    return folder


@pytest.fixture(scope="module")
def done(folder: Path, built: tuple[Path, dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """The example model from its table, beside variants that are equal, wrong, and broken."""
    others = (f"{name}=others.py:{how}" for name, how in ALSO.items())
    return run(
        folder,
        *("--model", EXAMPLE, "--seqlens", "16", "--table", str(built[0]), "--rounds", "6"),
        *("--variants", ",".join(("eager", "default", "table", *others)), "--out", "out"),
    )


@pytest.fixture(scope="module")
def variants(done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, dict[str, Any]]:
    """What compare.json says of each variant, with its cell in the one bucket if it has any."""
    assert done.returncode in (0, 1), done.stderr
    document = json.loads((folder / "out" / "compare.json").read_text())
    cells = {cell["name"]: cell for cell in document["buckets"][0]["variants"]}
    return {
        each["name"]: {**each, "cell": cells.get(each["name"])} for each in document["variants"]
    }


def test_every_variant_is_in_the_report(variants: dict[str, dict[str, Any]]) -> None:
    """Eager first, then the named ones, then the others; only those that can be timed are."""
    assert list(variants) == ["eager", "default", "table", *ALSO]
    timed = [name for name, found in variants.items() if found["cell"] is not None]
    assert timed == ["eager", "default", "table", "same", "doubled"]


def test_each_round_is_one_time_of_each_variant(variants: dict[str, dict[str, Any]]) -> None:
    """Six rounds are six times of device, wall and host for every variant that was timed."""
    cells = [found["cell"] for found in variants.values() if found["cell"] is not None]
    kinds = ("device_times_us", "wall_times_us", "host_times_us")
    counts = {len(cell[kind]) for cell in cells for kind in kinds}
    assert counts == {6}


def test_the_table_is_served_without_a_benchmark(variants: dict[str, dict[str, Any]]) -> None:
    """Both products are hits, nothing is a miss, nothing is measured."""
    start = variants["table"]["start"]
    assert (start["hits"], start["misses"], start["benchmarks"]) == (2, 0, 0)
    assert (variants["default"]["start"]["hits"], variants["eager"]["start"]["misses"]) == (
        None,
        None,
    )


def test_a_start_counts_from_its_process(variants: dict[str, dict[str, Any]]) -> None:
    """Seconds since the process started hold those of the calls."""
    for name in ("eager", "default", "table"):
        (output,) = variants[name]["start"]["outputs"]
        assert 0 < output["call_seconds"] < output["process_seconds"]
        assert output["peak_bytes"] > 0


def test_the_phases_of_a_start_add_up_to_it(variants: dict[str, dict[str, Any]]) -> None:
    """Each of them is rounded to a millisecond, so the sum is within one for each phase."""
    for name in ("eager", "default", "table"):
        start = variants[name]["start"]
        (output,) = start["outputs"]
        for whole, phases in (
            (start["process_seconds"], start["phases"]),
            (output["call_seconds"], output["phases"]),
            (start["process_seconds"] - output["call_seconds"], start["phases_before"]),
        ):
            assert sum(phases.values()) == pytest.approx(whole, abs=0.001 * len(Phase))
            assert min(phases.values()) >= 0


def test_each_variant_has_the_phases_that_it_went_through(
    variants: dict[str, dict[str, Any]],
) -> None:
    """Eager mode compiles nothing, only a table is installed, and no variant measures here."""
    phases = {
        name: set(variants[name]["start"]["phases"]) for name in ("eager", "default", "table")
    }
    assert phases["eager"] == {"import", "load", "first_calls", "other"}
    assert phases["table"] - phases["default"] == {"install"}
    assert {"tracing", "aot", "lowering", "code_generation"} <= phases["default"]
    assert "measuring" not in phases["default"] | phases["table"]


def test_the_report_has_the_phases_of_each_start(
    done: subprocess.CompletedProcess[str],
) -> None:
    """A line for each variant, within 80 columns."""
    lines = done.stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("what the starts"))
    assert lines[begin + 1].startswith("  eager "), lines[begin + 1]
    assert max(map(len, lines[begin : begin + 12])) <= 80


def test_equal_weights_give_equal_outputs(variants: dict[str, dict[str, Any]]) -> None:
    """The same layer under another name agrees with eager exactly, the compiled ones closely."""
    assert variants["same"]["cell"]["error"] == 0
    for name in ("default", "table"):
        assert 0 <= variants[name]["cell"]["error"] < 1e-3


def test_a_wrong_output_is_flagged(variants: dict[str, dict[str, Any]]) -> None:
    """Twice the output is a relative error of one; no speed-up is claimed for it."""
    found = variants["doubled"]
    assert (found["cell"]["agrees"], found["speedup"], found["cell"]["speedup"]) == (
        False,
        None,
        None,
    )
    assert found["verdict"].startswith("out of tolerance: its output is 1.0e+00 away")


def test_a_failing_variant_says_why(variants: dict[str, dict[str, Any]]) -> None:
    """One that raises, dies or has another output is out with its reason."""
    for name, reason in (
        ("narrow", "its output has shapes [(16, 1)], eager's has [(16, 256)]"),
        ("dying", "ended with exit code 7 (about to die)"),
        ("broken", "no such weight"),
    ):
        assert reason in variants[name]["failure"], name


def test_what_a_process_prints_is_in_its_log(
    done: subprocess.CompletedProcess[str], folder: Path
) -> None:
    """The log is kept in --out, and its text is not on the terminal."""
    assert (folder / "out" / "compare-dying.log").read_text() == "about to die\n"
    assert "about to die" not in done.stdout.replace("(about to die)", "")


def test_a_failed_table_variant_is_code_1(done: subprocess.CompletedProcess[str]) -> None:
    """Of all that failed, the one that serves from a table decides the exit code."""
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "compare failed on: broken"


def test_the_folder_has_the_chart(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """Beside the document and the logs."""
    assert "no chart" not in done.stderr
    assert (folder / "out" / "compare-speed.png").read_bytes().startswith(b"\x89PNG")


def test_weights_that_do_not_follow_from_the_seed_are_told(folder: Path) -> None:
    """A model that is another one in each process cannot be compared with itself."""
    words = ("--model", "others.py:Unseeded", "--seqlens", "4", "--variants", "eager")
    done = run(folder, *words, "--rounds", "6", "--json")
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)["variants"]}
    assert found["default"]["failure"].startswith("its weights differ from eager's")


def test_what_cannot_be_compared_is_code_3(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad argument or a missing table ends it before any process is started."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("warmup.bench.race.Remote", None)  # a process would be another error
    same = ("compare", "--device", "cpu", "--model", "others.py:Same", "--seqlens", "4")
    for words, said in (
        (("--variants", "fastest"), "--variants: 'fastest' is not a variant"),
        (("--rounds", "3"), "--rounds 3 is too few"),
        (("--launch", "cudagraph"), "--launch cudagraph needs a GPU"),
        (("--table", "none.json"), "no table at none.json"),
        (("--variants", "table"), "no table for "),
        (
            ("--variants", "table-padded", "--table", "other.json"),
            "table-padded: other.json pads no weights on this device",
        ),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*same, *words])
        assert stopped.value.code == 3, words
        assert said in capsys.readouterr().err


def test_eager_mode_that_fails_is_code_3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without eager outputs there is nothing to agree with; here it hangs, and is ended."""
    monkeypatch.chdir(folder)
    request = CompareRequest(
        model="others.py:Hanging", seqlens="4", device="cpu", variants="eager", timeout_s=5.0
    )
    with pytest.raises(ModelError, match="failed in eager mode: said nothing for 5 s") as failed:
        race(request)
    assert failed.value.exit_code == 3
