"""`warmup pad fit` and `warmup pad collect`: what they print, write and refuse."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from stated_pads import drawn_keys, lines_of

from warmup.keys.pad import PADDED
from warmup.prediction.model_file import read_device_model

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]
LAYER = "pad mm m=8192 n=8192 k=4095 bf16 a=row b=col"

pytest.importorskip("torch")


def write_samples(path: Path, count: int) -> Path:
    """Write *count* samples and a layer of a model, with stated times."""
    own = {PADDED: 1.25}
    lines = [*lines_of(drawn_keys(count), own=own), *lines_of([LAYER], source="vit.py", own=own)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_the_report_says_how_many_cases_and_how_they_were_held_out(
    tmp_path: Path, run_main: Command
) -> None:
    """No figure stands without them, for samples and for layers; lines have at most 80 columns."""
    done = run_main("pad", "fit", str(write_samples(tmp_path / "pad.jsonl", 300)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    text = " ".join(done.stdout.split())
    assert "300 samples drawn, 1 decision of models" in lines
    assert re.search(r"held-out samples: 300, of which \d+ unsure; held out: 5 parts by size", text)
    assert re.search(r"layers of models: 1, of which \d unsure; held out: no layer of a", text)
    names = ("never", "always", "torch's pad_mm", "pad_mm, AutoHeuristic", "device model")
    for name in (*names, "measured best"):
        assert sum(line.startswith(f"{name} ") for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_samples_are_of_one_device_or_of_several(run_main: Command) -> None:
    """`--device` beside `--devices` is refused before anything is drawn."""
    words = ("--samples", "1", "--out", "pad.jsonl", "--devices", "all", "--device", "cuda:1")
    done = run_main("pad", "collect", *words)
    assert done.returncode == 2
    assert "--devices cannot be combined with --device" in " ".join(done.stderr.split())


def test_the_documents_of_a_report_agree(tmp_path: Path, run_main: Command) -> None:
    """What --json prints is what --report writes, with a chart beside it."""
    path = write_samples(tmp_path / "pad.jsonl", 250)
    done = run_main("pad", "fit", str(path), "--json", "--report", "held")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.rglob("held")
    assert json.loads(done.stdout) == json.loads((folder / "pad-held-out.json").read_text())
    assert {one.name for one in folder.glob("*.svg")} == {"pad-held-out-gain.svg"}


def test_the_section_is_written(tmp_path: Path, run_main: Command) -> None:
    """A new file has pad decisions alone, and serving can read it."""
    path = write_samples(tmp_path / "pad.jsonl", 250)
    done = run_main("pad", "fit", str(path), "--out", "x.model.json")
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.rglob("x.model.json")
    found = read_device_model(written, needs_times=False)
    assert found.pad is not None
    assert found.pad.samples == 250


def test_a_model_of_too_little_is_not_written(tmp_path: Path, run_main: Command) -> None:
    """The report is printed, the error says why, and there is no file."""
    path = write_samples(tmp_path / "pad.jsonl", 60)
    done = run_main("pad", "fit", str(path), "--out", "x.model.json")
    assert done.returncode == 3
    assert "trained on 60 samples, fewer than 200" in done.stderr
    assert "held-out samples: 60" in done.stdout
    assert not [*tmp_path.rglob("x.model.json")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("fit absent.jsonl", "absent.jsonl: cannot be read"),
        ("collect --samples 2 --out p.jsonl --dtypes f8", "use any of f16,bf16,f32"),
        ("collect --samples 2 --out p.jsonl --budget soon", "is no time; write 90s, 20m or 2h"),
        ("collect --samples 2 --out p.jsonl --device cpu", "inductor pads no GEMM on cpu"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    run_main: Command, tmp_path: Path, words: str, text: str
) -> None:
    """Exit 3, before anything is measured or written."""
    done = run_main("pad", *words.split())
    assert done.returncode == 3
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not [*tmp_path.rglob("p.jsonl")]
