"""Builds that go on, stop, fail, or are asked for the impossible: real compiles, real command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked
from own_processes import codes_of

from warmup.cli import main
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "programs" / "models"
PLAIN = MODELS / "plain_script.py"
NET = ("--model", f"{PLAIN}:Net", "--input", "x=[seqlen,32]:f32")
ALONE = ("--set", "fused_top_k=0")  # how a row is measured is not the matter
INPUT = ("--input", "x=[seqlen,32]:f32")


def environment(folder: Path) -> dict[str, str]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    return {**os.environ, "PYTHONPATH": str(ROOT), **caches}


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = ("-m", "warmup", "build", "--device", "cpu", *arguments)
    return run_forked(*words, env=environment(folder), cwd=folder)


def test_a_second_build_tunes_only_what_is_missing(
    net: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A re-run with one more bucket tunes that bucket alone, and asks for the same keys."""
    shutil.copy(net[0], tmp_path)
    done = build(tmp_path, *NET, "--seqlens", "8,24", "--out", "net.json", "--json")
    assert done.returncode in codes_of(["build"]), done.stderr[-3000:]
    reports = (net[1], json.loads(done.stdout))
    tuned = [[bucket["tuned"] for bucket in report["buckets"]] for report in reports]
    assert tuned == [[1], [0, 1]]
    assert reports[0]["buckets"][0]["keys"] == reports[1]["buckets"][0]["keys"]


@pytest.mark.usefixtures("heeded_ctrl_c")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_build_leaves_a_valid_table(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """A signal after the first row ends the build with its code; what was measured stays."""
    out = tmp_path / "net.json"
    command = [sys.executable, "-m", "warmup", "build", "--device", "cpu", "--out", str(out)]
    command += [*NET, "--seqlens", "8,16,24,32,40,48,56,64", *ALONE]
    with subprocess.Popen(
        command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    ) as process:
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
    done = build(tmp_path, *model, "--seqlens", "8", "--out", "noisy.json", *ALONE)
    assert done.returncode == 3
    assert "error: bucket seqlen=8: the compiled output is" in done.stderr
    assert "also without any row; no row is to blame" in done.stderr
    assert "pass what it draws as an input with --input" in done.stderr
    rows = read(tmp_path / "noisy.json").rows
    assert {row.untrusted for row in rows.values()} == {None}


def test_a_table_of_another_policy_is_not_touched(
    net: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Building into a table with other backends exits 3, names them, and writes nothing."""
    table = Path(shutil.copy(net[0], tmp_path))
    before = table.read_bytes()
    model = ("--model", f"{PLAIN}:Net", *INPUT, "--seqlens", "16", "--device", "cpu")
    with pytest.raises(SystemExit) as stopped:
        main(["build", *model, "--out", str(table), "--set", "backends=CPP"])
    assert stopped.value.code == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "max_autotune_gemm_backends: table ATEN,CPP, here CPP" in said
    assert table.read_bytes() == before


@pytest.mark.long
def test_a_model_without_a_choice_is_said_so(tmp_path: Path) -> None:
    """With the library as the only backend there is nothing to choose: exit 3, no table."""
    model = ("--model", f"{PLAIN}:Net", *INPUT, "--seqlens", "8")
    done = build(tmp_path, *model, "--out", "net.json", "--set", "backends=ATEN")
    assert done.returncode == 3
    assert "asked inductor for no GEMM choice" in done.stderr
    assert not (tmp_path / "net.json").exists()


@pytest.mark.long
def test_what_no_row_kind_covers_is_named(tmp_path: Path) -> None:
    """A build names its site; where the model asks for nothing else, that is why it ends."""
    for name, codes in (("Alone", {3}), ("Beside", codes_of(["build"]))):
        out, model = f"{name}.json", ("--model", f"{MODELS / 'tuned_op.py'}:{name}", *INPUT)
        done = build(tmp_path, *model, "--seqlens", "8", "--out", out, *ALONE)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode in codes, (name, said)
        assert (tmp_path / out).exists() is (name == "Beside"), name
        assert "select:warmup_models::double_mm_autotuned" in said, name
        assert "no row kind" in said, name


@pytest.mark.long
def test_a_model_without_a_graph_is_said_so(tmp_path: Path) -> None:
    """The error names the frame that torch leaves out, torch's reason, and what runs outside."""
    model = ("--model", f"{PLAIN.parent / 'skipped.py'}:Skipped", "--seqlens", "8")
    done = build(tmp_path, *model, "--out", "skipped.json")
    assert done.returncode == 3
    error = done.stderr.splitlines()[-1]
    assert "in any bucket, with 1 uncompiled frame: forward (skipped.py:" in error
    assert "Tensor.item()" in error
    assert "; matmuls outside any graph: 2; " in error
    assert not (tmp_path / "skipped.json").exists()


@pytest.mark.long
def test_no_compiler_on_cpu_is_said_so(tmp_path: Path) -> None:
    """With a compiler that does not exist the build exits 3 with one line, before any work."""
    model = ("--model", f"{PLAIN}:Net", *INPUT, "--seqlens", "8")
    done = subprocess.run(
        [sys.executable, "-m", "warmup", "build", "--device", "cpu", *model, "--out", "n.json"],
        env={**environment(tmp_path), "CXX": "no-such-compiler"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error: inductor finds no C++ compiler")


def _net(*arguments: str) -> tuple[str, ...]:
    return ("--model", f"{PLAIN}:Net", *arguments)


BAD = {
    "file missing": (("--model", "nowhere.py", "--seqlens", "8"), 3, "there is no file nowhere.py"),
    "name missing": (("--model", f"{PLAIN}:Nope", "--seqlens", "8"), 3, "has no 'Nope'"),
    "no name, two classes": (("--model", str(PLAIN), "--seqlens", "8"), 3, "Net, NeedsArguments"),
    "needs arguments": (
        ("--model", f"{PLAIN}:NeedsArguments", "--seqlens", "8"),
        3,
        "needs arguments (width)",
    ),
    "not a model": (("--model", f"{PLAIN}:number", "--seqlens", "8"), 3, "not a class"),
    "a call": (("--model", f"{PLAIN}:Net(8)", "--seqlens", "8"), 3, "def model(): return Net(8)"),
    "a hub's name": (("--model", "org/gpt2", "--seqlens", "8"), 3, "models are not downloaded"),
    "module missing": (("--model", "no.such:Net", "--seqlens", "8"), 3, "importing no.such failed"),
    "not a target": (("--model", "Net", "--seqlens", "8"), 3, "names no model"),
    "inputs missing": (
        ("--model", f"{MODELS / 'no_parameters.py'}", "--seqlens", "8"),
        3,
        'cannot be inferred (no layer suggests a form); name them, such as --input "x=[seqlen',
    ),
    "not a size": (_net(*INPUT, "--seqlens", "8,x"), 3, "'x' is not a positive integer"),
    "zero": (_net(*INPUT, "--seqlens", "0"), 3, "'0' is not a positive integer"),
    "negative": (_net(*INPUT, "--seqlens=-4"), 3, "'-4' is not a positive integer"),
    "repeated": (_net(*INPUT, "--seqlens", "8,8"), 3, "8 is given more than once"),
    "no bucket": (_net(*INPUT), 3, "no bucket is given"),
    "unbound dim": (_net("--input", "x=[rows,32]", "--seqlens", "8"), 3, "nothing binds the dim"),
    "unknown argument": (_net("--input", "y=[seqlen,32]", "--seqlens", "8"), 3, "forward takes x"),
    "bad input": (_net("--input", "x(8)", "--seqlens", "8"), 3, "is not NAME=[DIM,...]:DTYPE"),
    "integer dtype": (_net("--seqlens", "8", "--dtype", "i8"), 3, "use one of f64, f32"),
    "bad dtype": (_net(*INPUT, "--seqlens", "8", "--dtype", "f12"), 3, "'f12' is not a dtype"),
    "bad device": (_net(*INPUT, "--seqlens", "8", "--device", "tpu"), 3, "is not a device"),
    "absent device": (
        _net(*INPUT, "--seqlens", "8", "--device", "cuda:99"),
        3,
        "CUDA devices here",
    ),
    "bad mode": (_net(*INPUT, "--seqlens", "8", "--set", "mode=fast"), 3, "'fast' is not a mode"),
    "bad backend": (
        _net(*INPUT, "--seqlens", "8", "--set", "backends=CUTLASS"),
        3,
        "cannot be used",
    ),
    "model fails": (_net("--input", "x=[seqlen,31]", "--seqlens", "8"), 3, "failed in eager mode"),
    "out is no json": (_net(*INPUT, "--seqlens", "8", "--out", "t.txt"), 3, "is not a .json file"),
    "out below a file": (
        _net(*INPUT, "--seqlens", "8", "--out", str(PLAIN / "t.json")),
        3,
        "cannot write the table",
    ),
    "no model": (("--seqlens", "8"), 2, "give one of --model, --problems, --from-vllm"),
}


def test_bad_input_is_one_line_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bad input ends with its code and a line that says what is wrong; nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for case, (arguments, code, words) in BAD.items():
        device = () if "--device" in arguments else ("--device", "cpu")
        with pytest.raises(SystemExit) as stopped:
            main(["build", *device, *arguments])
        captured = capsys.readouterr()
        assert stopped.value.code == code, (case, captured.err)
        assert words in " ".join(captured.err.split()), case
        assert captured.out == "", case
        assert code == 2 or captured.err.count("\n") == 1, case
        assert not list(tmp_path.rglob("*.json")), case


def test_a_model_may_be_a_class_a_function_or_an_instance() -> None:
    """Each form loads in eval mode, from a script whose __main__ block does not run."""
    from warmup.models.loading import load_model

    for name in ("Net", "make", "instance"):
        model = load_model(f"{PLAIN}:{name}")
        assert (model.module.training, model.name) == (False, f"plain_script.{name}")


def test_named_dims_make_the_product_of_all_sizes() -> None:
    """Inputs spelled with named dims get every combination, and the dtype asked for."""
    import torch

    from warmup.core.buckets import parse_buckets, parse_inputs
    from warmup.models.loading import load_model, make_inputs

    model = load_model(f"{PLAIN}:Net")
    buckets = parse_buckets("560", "batch=1,8")
    specs = parse_inputs(["x=[batch,seqlen,32]:bf16"])
    made = [make_inputs(model, specs, b, torch.device("cpu"), None).kwargs["x"] for b in buckets]
    assert [(tuple(x.shape), x.dtype) for x in made] == [
        ((1, 560, 32), torch.bfloat16),
        ((8, 560, 32), torch.bfloat16),
    ]


def test_a_build_says_how_its_seconds_divide(net: tuple[Path, dict[str, Any]]) -> None:
    """Compiling, trials and judging are stages, and all stages are no longer than the build."""
    stages, seconds = net[1]["stages"], net[1]["seconds"]
    assert {"compiling", "bare_trials", "judging", "other"} == stages.keys()
    assert 0 < sum(stages.values()) <= seconds + 0.01


@pytest.mark.long
def test_a_dry_run_measures_and_writes_nothing(
    net: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """It finds the problem of the bucket that the table lacks; no file is made or changed."""
    shutil.copy(net[0], tmp_path)
    before = (tmp_path / "net.json").read_bytes()
    words = ("--model", f"{PLAIN}:Net", *INPUT, "--seqlens", "8,24", "--out", "net.json")
    done = build(tmp_path, *words, "--dry-run", "--json")
    plan = json.loads(done.stdout)
    (known,) = net[1]["buckets"][0]["keys"]
    assert (done.returncode, plan["known"]) == (0, [known])
    assert plan["missing"] == [known.replace("m=8 ", "m=24 ")]
    assert [(one["known"], one["missing"]) for one in plan["buckets"]] == [
        ([known], []),
        ([], plan["missing"]),
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name != "inductor"] == ["net.json"]
    assert (tmp_path / "net.json").read_bytes() == before
