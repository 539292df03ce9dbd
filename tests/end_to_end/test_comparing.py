"""`warmup compare` on CPU: real processes and compiles, with variants that fail in several ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from own_processes import ROOT, Done, warmup_in
from sample_tables import make_table

from warmup.bench.compare import CompareRequest, race
from warmup.cli import main
from warmup.core.errors import ModelError
from warmup.core.phases import Phase
from warmup.table.store import write

pytestmark = pytest.mark.long

EXAMPLE = f"{ROOT / 'examples' / 'mlp.py'}:MLP"
# Variants beside the example model, which has the same inputs and outputs.
OTHERS = f"""
import os, random, sys
import torch
sys.path.insert(0, {str(ROOT / "examples")!r})
from mlp import MLP, example_inputs

class Doubled(MLP):
    def forward(self, x):
        return 2 * super().forward(x)

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

"""
ALSO = {
    "doubled": "Doubled+eager",
    "dying": "Dying+eager",
    "broken": "Raising+table",
}


def compare(folder: Path, *words: str, code: int = 0) -> Done:
    return warmup_in(folder, "compare", "-v", "--device", "cpu", "--freezing", *words, code=code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    (folder / "others.py").write_text(OTHERS)
    write(folder / "other.json", make_table())
    return folder


@pytest.fixture(scope="module")
def done(folder: Path, built: tuple[Path, dict[str, Any]]) -> Done:
    """The example model from its table, beside variants that are equal, wrong, and broken."""
    others = (f"{name}=others.py:{how}" for name, how in ALSO.items())
    return compare(
        folder,
        *("--model", EXAMPLE, "--seqlens", "16", "--table", str(built[0]), "--rounds", "6"),
        *("--variants", ",".join(("eager", "default", "table", *others)), "--out", "out"),
        code=1,  # `broken` serves from the table
    )


@pytest.fixture(scope="module")
def variants(done: Done, folder: Path) -> dict[str, dict[str, Any]]:
    """What compare.json says of each variant, with its cell in the one bucket if it has any."""
    del done
    document = json.loads((folder / "out" / "compare.json").read_text())
    cells = {cell["name"]: cell for cell in document["buckets"][0]["variants"]}
    return {
        each["name"]: {**each, "cell": cells.get(each["name"])} for each in document["variants"]
    }


def test_each_variant_is_timed_in_each_round_or_says_why_not(
    variants: dict[str, dict[str, Any]],
) -> None:
    """A wrong output gets no speed-up."""
    assert list(variants) == ["eager", "default", "table", *ALSO]
    cells = {name: found["cell"] for name, found in variants.items() if found["cell"]}
    assert list(cells) == ["eager", "default", "table", "doubled"]
    for kind in ("device_times_us", "wall_times_us", "host_times_us"):
        assert {len(cell[kind]) for cell in cells.values()} == {6}, kind
    assert max(cells["default"]["error"], cells["table"]["error"]) < 1e-3
    doubled = variants["doubled"]
    claimed = (doubled["cell"]["agrees"], doubled["speedup"], doubled["cell"]["speedup"])
    assert claimed == (False, None, None)
    assert doubled["verdict"].startswith("out of tolerance: its output is 1.0e+00 away")
    for name, reason in (
        ("dying", "ended with exit code 7 (about to die)"),
        ("broken", "no such weight"),
    ):
        assert reason in variants[name]["failure"], name


def test_a_start_is_the_sum_of_the_phases_that_it_went_through(
    variants: dict[str, dict[str, Any]],
) -> None:
    """Each phase is rounded to a millisecond. Only a table is installed, and nothing measures."""
    phases = {}
    for name in ("eager", "default", "table"):
        start = variants[name]["start"]
        seconds, parts = start["process_seconds"], start["phases"].values()
        assert 0 < start["call_seconds"] < seconds
        assert start["peak_bytes"] > 0
        assert sum(parts) == pytest.approx(seconds, abs=0.001 * len(Phase)), name
        assert min(parts) >= 0, name
        phases[name] = set(start["phases"])
    assert phases["eager"] == {"import", "load", "first_calls", "other"}
    assert phases["table"] - phases["default"] == {"install"}
    assert {"tracing", "aot", "lowering", "code_generation"} <= phases["default"]
    assert "measuring" not in phases["default"] | phases["table"]
    start = variants["table"]["start"]
    assert (start["hits"], start["misses"], start["benchmarks"]) == (2, 0, 0)


def test_the_report_the_logs_and_the_chart_are_written(done: Done, folder: Path) -> None:
    lines = done.stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("what the starts"))
    assert lines[begin + 1].startswith("  eager "), lines[begin + 1]
    assert max(map(len, lines[begin : begin + 12])) <= 80
    assert done.stderr.splitlines()[-1] == "compare failed on: broken"
    assert (folder / "out" / "compare-dying.log").read_text() == "about to die\n"
    assert "about to die" not in done.stdout.replace("(about to die)", "")
    assert (folder / "out" / "compare-speed.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_code_3(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad argument or a missing table ends it before any process is started."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("warmup.bench.compare.Remote", None)  # a process would be another error
    same = ("compare", "--device", "cpu", "--model", "others.py:Doubled", "--seqlens", "4")
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
