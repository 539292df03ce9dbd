"""`warmup fit`: what it prints, writes and refuses."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]
ROOT = Path(__file__).resolve().parents[2]
TIMINGS = ROOT / "docs/benchmarks/results/timings"
MEASURED, FITTED = TIMINGS / "h100-vit.jsonl.gz", TIMINGS / "h100-predicted.jsonl.gz"
OF_H200 = TIMINGS / "h200-vit-1.jsonl.gz"
SHIPPED = ROOT / "warmup/prediction/models/nvidia-h100-80gb-hbm3.model.json"


@pytest.fixture
def two_models(tmp_path: Path) -> Path:
    """Timings of the ViT as those of two models: its wide layers, and the others."""
    path = tmp_path / "two.jsonl"
    with gzip.open(MEASURED, "rt") as file, path.open("w", encoding="utf-8") as two:
        for line in map(json.loads, file):
            source = "wide" if "n=3072" in line["key"] else "narrow"
            two.write(json.dumps({**line, "source": source}) + "\n")
    return path


def test_the_report_says_how_many_problems_and_how_they_were_held_out(
    two_models: Path, run_main: Command
) -> None:
    """A figure never stands without the number of problems; lines have at most 80 columns."""
    done = run_main("fit", str(two_models))
    assert done.returncode == 0, done.stderr
    assert "12 GEMMs of 2 sources, 336 times" in done.stdout
    assert "held out: each model in turn" in done.stdout
    (narrow,) = [line for line in done.stdout.splitlines() if line.startswith("narrow")]
    assert narrow.split()[:2] == ["narrow", "9"]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_device_model_is_judged_on_sizes_that_it_was_not_fitted_to(run_main: Command) -> None:
    """The text says what it was fitted to, and how many problems it is judged on and left out."""
    done = run_main(
        "fit", str(MEASURED), str(TIMINGS / "h100-t5.jsonl.gz"), "--judge", str(SHIPPED)
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "held out: problems of sizes that the device model was not fitted to" in lines
    assert "2 left out: of sizes that the device model was fitted to" in lines
    assert any(line.startswith("device model: ") and "eager cold" in line for line in lines)
    counted = {
        name: line.split()[1] for line in lines if (name := line.split(" ")[0]) in {"t5", "vit"}
    }
    assert counted == {"t5": "8", "vit": "12"}
    assert max(map(len, lines)) <= 80


def test_a_device_model_is_not_judged_by_another_template(
    tmp_path: Path, run_main: Command
) -> None:
    """Times of another version of a template say nothing about a device model."""
    path = tmp_path / "other.jsonl"
    with gzip.open(MEASURED, "rt") as file, path.open("w", encoding="utf-8") as other:
        for line in map(json.loads, file):
            other.write(json.dumps({**line, "templates": {"triton::mm": "0" * 64}}) + "\n")
    done = run_main("fit", str(path), "--judge", str(SHIPPED))
    assert done.returncode == 3
    assert "fitted to another version of the template triton::mm" in done.stderr


def test_the_documents_of_a_report_agree(
    two_models: Path, tmp_path: Path, run_main: Command
) -> None:
    """What --json prints is what --report writes, with two charts beside it."""
    done = run_main("fit", str(two_models), "--json", "--report", "held")
    (folder,) = tmp_path.rglob("held")
    assert json.loads(done.stdout) == json.loads((folder / "held-out.json").read_text())
    names = {path.name for path in folder.glob("*.svg")}
    assert names == {"held-out-predicted.svg", "held-out-regret.svg"}


def test_a_model_of_too_little_is_not_written(run_main: Command, tmp_path: Path) -> None:
    """Twelve problems: the report is printed, the error says why, and there is no file."""
    done = run_main("fit", str(MEASURED), "--out", "x.model.json")
    assert done.returncode == 3
    assert "trained on 12 problems, fewer than 100" in done.stderr
    assert "nothing was held out" in done.stdout
    assert not [*tmp_path.rglob("x.model.json")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("build", "--search", "predicted"), "--search predicted has no device model"),
        (("build", "--device-model", "x.json"), "--device-model is not used"),
        (("build", "--search", "predicted", "--budget", "1m"), "has nothing to be spent on"),
        (("fit", "absent.jsonl"), "absent.jsonl: cannot be read"),
        (("fit", str(MEASURED), "--judge", "x.json", "--out", "y.json"), "--judge fits nothing"),
        (("fit", str(MEASURED), "--judge", "x.json", "--compare"), "--judge fits nothing"),
        (("fit", str(MEASURED), "--judge", "absent.json"), "absent.json"),
        (("fit", str(OF_H200), "--judge", str(SHIPPED)), "another device: NVIDIA H100 80GB HBM3"),
        (("fit", str(FITTED), "--judge", str(SHIPPED)), "was fitted to every problem"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    run_main: Command, words: tuple[str, ...], text: str
) -> None:
    """Exit 3, before anything is loaded or measured."""
    model = ("--model", "net.py", "--seqlens", "4") if words[0] == "build" else ()
    done = run_main(*words, *model)
    assert done.returncode == 3
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
