"""`warmup build --devices`: what it refuses, and what is printed of each device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_tables import make_key, make_table

pytest.importorskip("torch")

from warmup.cli.build_render import document, spell_devices
from warmup.serving.audit import encode_problems
from warmup.tuning.report import BuildReport, DeviceShare

RunMain = Callable[..., subprocess.CompletedProcess[str]]
PROBLEMS = ("--problems", "m.json", "--out", "t.json")
MODEL = ("--model", "m.py", "--seqlens", "8")


def test_what_does_not_go_with_several_devices(run_main: RunMain) -> None:
    for words, code, said in (
        ((*MODEL, "--retry", "all"), 2, "--devices cpu,cpu cannot be combined with --retry all"),
        (
            (*MODEL, "--retry", "unstable"),
            2,
            "--devices cpu,cpu cannot be combined with --retry unstable",
        ),
        ((*PROBLEMS, "--set", "problem_limit=soon"), 3, "problem_limit 'soon' is no time"),
        (("--out", "t.json", "--", "true"), 2, "cannot be combined with --devices"),
    ):
        done = run_main("build", "--devices", "cpu,cpu", *words)
        assert done.returncode == code, words
        assert said in " ".join(done.stderr.split()), words


@pytest.fixture
def report(tmp_path: Path) -> BuildReport:
    """A build on two devices, of which one was left out."""
    shares = (
        DeviceShare(name="cuda:0", problems=1, control_us=100.0),
        DeviceShare(name="cuda:1", problems=0, left_out="no CUDA driver"),
    )
    path = tmp_path / "t.json"
    return BuildReport(path, make_table({}), "0" * 64, (), (), 1.0, devices=shares)


def test_each_device_has_a_line(report: BuildReport) -> None:
    """It has the problems, the time of the control problem, and why the device was left out."""
    assert list(spell_devices(report)) == [
        "cuda:0: 1 problem, control problem 100.0 us",
        "cuda:1: 0 problems; left out: no CUDA driver",
    ]


def test_each_device_is_in_the_document(report: BuildReport) -> None:
    assert document(report)["devices"][1] == {
        "name": "cuda:1",
        "problems": 0,
        "control_us": None,
        "left_out": "no CUDA driver",
    }


def test_the_command_refuses_a_wrong_share_and_says_that_one_is_empty(
    run_main: RunMain, tmp_path: Path
) -> None:
    """A wrong I/N, or a share of a model, is a usage error; an empty share ends with 0."""
    misses = tmp_path / "m.json"
    misses.write_text(encode_problems({(make_key(16), "not_in_table"): 1}, ()))
    words = ("build", "--problems", str(misses), "--out", "t.json", "--shard")
    assert run_main(*words, "3/2").returncode == 2
    of_model = run_main("build", "--model", "m.py", "--shard", "1/2")
    assert "--model cannot be combined with --shard" in " ".join(of_model.stderr.split())
    empty = run_main(*words, "2/2")
    assert (empty.returncode, "no table was written" in empty.stderr) == (0, True)
