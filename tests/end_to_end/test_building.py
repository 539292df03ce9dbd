"""Builds that go on, stop, fail, or are asked for the impossible: real compiles, real command."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, Done, environment, warmup_in

from warmup.cli import main
from warmup.table.store import read

PLAIN = MODELS / "plain_script.py"
INPUT = ("--input", "x=[seqlen,32]:f32")
NET = ("--model", f"{PLAIN}:Net", *INPUT)
ALONE = ("--set", "fused_top_k=0")  # how a row is measured is not the matter
Built = tuple[Path, dict[str, Any]]


def build(folder: Path, *words: str, code: int | None = None, **variables: str) -> Done:
    return warmup_in(folder, "build", "--device", "cpu", *words, code=code, **variables)


def test_a_second_build_tunes_only_what_is_missing(net: Built, tmp_path: Path) -> None:
    shutil.copy(net[0], tmp_path)
    done = build(tmp_path, *NET, "--seqlens", "8,24", "--out", "net.json", "--json")
    reports = (net[1], json.loads(done.stdout))
    tuned = [[bucket["tuned"] for bucket in report["buckets"]] for report in reports]
    assert tuned == [[1], [0, 1]]
    assert reports[0]["buckets"][0]["keys"] == reports[1]["buckets"][0]["keys"]
    stages, seconds = net[1]["stages"], net[1]["seconds"]
    assert {"compiling", "bare_trials", "judging", "other"} == stages.keys()
    assert 0 < sum(stages.values()) <= seconds + 0.01


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_an_interrupted_build_leaves_a_valid_table(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """A signal after the first row ends the build with its code; what was measured stays."""
    out = tmp_path / "net.json"
    command = [sys.executable, "-m", "warmup", "build", "--device", "cpu", "--out", str(out)]
    command += [*NET, "--seqlens", "8,16,24,32,40,48,56,64", *ALONE]
    env = {**environment(), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr[-2000:]
    assert 1 <= len(read(out).rows) < 8
    assert number is signal.SIGKILL or "run the same command again" in stderr
    assert number is signal.SIGKILL or not out.with_name("net.json.journal").exists()


@pytest.mark.long
def test_an_output_that_disagrees_with_eager_fails_the_build(tmp_path: Path) -> None:
    """A model with random outputs exits 3 with advice, and blames no row; all rows stay."""
    model = ("--model", f"{MODELS / 'random_output.py'}:Noisy")
    done = build(tmp_path, *model, "--seqlens", "8", "--out", "noisy.json", *ALONE, code=3)
    assert "error: bucket seqlen=8: the compiled output is" in done.stderr
    assert "also without any row; no row is to blame" in done.stderr
    assert "pass what it draws as an input with --input" in done.stderr
    rows = read(tmp_path / "noisy.json").rows
    assert {row.untrusted for row in rows.values()} == {None}


@pytest.mark.long
def test_a_build_without_a_row_says_why(tmp_path: Path) -> None:
    for target, said in (
        ("tuned_op.py:Alone", ("select:warmup_models::double_mm_autotuned", "no row kind")),
        (
            "skipped.py:Skipped",
            (
                "in any bucket, with 1 uncompiled frame: forward (skipped.py:",
                "Tensor.item()",
                "; matmuls outside any graph: 2; ",
            ),
        ),
    ):
        words = ("--model", f"{MODELS / target}", "--seqlens", "8", "--out", "t.json", *ALONE)
        done = build(tmp_path, *words, *(INPUT if "tuned" in target else ()), code=3)
        text = " ".join(done.stderr.split())
        assert [part for part in said if part not in text] == [], target
        assert not (tmp_path / "t.json").exists(), target


@pytest.mark.long
def test_no_compiler_on_cpu_is_said_so_before_any_work(tmp_path: Path) -> None:
    words = (*NET, "--seqlens", "8", "--out", "n.json")
    done = build(tmp_path, *words, code=3, CXX="no-such-compiler")
    assert done.stderr.startswith("error: inductor finds no C++ compiler")


PLAIN_NET = f"--model {PLAIN}:Net"
SOUND = f"{PLAIN_NET} --input x=[seqlen,32]:f32 --seqlens 8"
BAD = (
    ("--model nowhere.py --seqlens 8", "there is no file nowhere.py"),
    (f"--model {PLAIN}:Nope --seqlens 8", "has no 'Nope'"),
    (f"--model {PLAIN} --seqlens 8", "Net, NeedsArguments"),
    (f"--model {PLAIN}:NeedsArguments --seqlens 8", "needs arguments (width)"),
    (f"--model {PLAIN}:number --seqlens 8", "not a class"),
    (f"--model {PLAIN}:Net(8) --seqlens 8", "def model(): return Net(8)"),
    ("--model org/gpt2 --seqlens 8", "models are not downloaded"),
    ("--model no.such:Net --seqlens 8", "importing no.such failed"),
    ("--model Net --seqlens 8", "names no model"),
    (
        f"--model {MODELS / 'no_parameters.py'} --seqlens 8",
        'cannot be inferred (no layer suggests a form); name them, such as --input "x=[seqlen',
    ),
    (f"{PLAIN_NET} --seqlens 8,x", "'x' is not a positive integer"),
    (f"{PLAIN_NET} --input x=[seqlen,32]", "no bucket is given"),
    (f"{PLAIN_NET} --input x=[rows,32] --seqlens 8", "nothing binds the dim"),
    (f"{PLAIN_NET} --input y=[seqlen,32] --seqlens 8", "forward takes x"),
    (f"{PLAIN_NET} --input x(8) --seqlens 8", "is not NAME=[DIM,...]:DTYPE"),
    (f"{PLAIN_NET} --input x=[seqlen,31] --seqlens 8", "failed in eager mode"),
    (f"{PLAIN_NET} --seqlens 8 --dtype i8", "use one of f64, f32"),
    (f"{SOUND} --dtype f12", "'f12' is not a dtype"),
    (f"{SOUND} --device tpu", "is not a device"),
    (f"{SOUND} --device cuda:99", "CUDA devices here"),
    (f"{SOUND} --set mode=fast", "'fast' is not a mode"),
    (f"{SOUND} --set backends=CUTLASS", "cannot be used"),
    (f"{SOUND} --set l2=cold", "a CPU has no CUDA graphs and is timed warm"),
    (f"{SOUND} --launch cudagraph", "a CPU has no CUDA graphs and is timed warm"),
    (f"{SOUND} --out t.txt", "is not a .json file"),
    (f"{SOUND} --out {PLAIN / 't.json'}", "cannot write the table"),
)


def test_bad_input_is_one_line_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for words, said in BAD:
        device = () if "--device" in words else ("--device", "cpu")
        with pytest.raises(SystemExit) as stopped:
            main(["build", *device, *words.split()])
        captured = capsys.readouterr()
        assert stopped.value.code == 3, (words, captured.err)
        assert said in " ".join(captured.err.split()), words
        assert (captured.out, captured.err.count("\n")) == ("", 1), words
        assert not list(tmp_path.rglob("*.json")), words


@pytest.mark.long
def test_a_dry_run_measures_and_writes_nothing(net: Built, tmp_path: Path) -> None:
    shutil.copy(net[0], tmp_path)
    before = (tmp_path / "net.json").read_bytes()
    words = (*NET, "--seqlens", "8,24", "--out", "net.json", "--dry-run", "--json")
    plan = json.loads(build(tmp_path, *words).stdout)
    (known,) = net[1]["buckets"][0]["keys"]
    missing = [known.replace("m=8 ", "m=24 ")]
    assert (plan["known"], plan["missing"]) == ([known], missing)
    buckets = [(one["known"], one["missing"]) for one in plan["buckets"]]
    assert buckets == [([known], []), ([], missing)]
    assert [path.name for path in tmp_path.iterdir() if path.name != "inductor"] == ["net.json"]
    assert (tmp_path / "net.json").read_bytes() == before
