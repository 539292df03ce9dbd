"""`warmup suggest`: what it prints, reads and refuses."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from own_processes import run_python

from warmup.core.buckets import parse_buckets
from warmup.diagnostics.suggest import suggest

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]
COUNTS = {16: 600, 200: 40, 560: 30, 2048: 1}


@pytest.fixture
def warmup(tmp_path: Path, run_main: Command) -> Command:
    """``warmup("--max-buckets", "2")``: suggest for sizes.csv, within this process."""
    lines = "".join(f"{size},{count}\n" for size, count in COUNTS.items())
    (tmp_path / "sizes.csv").write_text(f"size,count\n{lines}")

    def run(*words: str, histogram: str = "sizes.csv") -> Done:
        return run_main("suggest", "--histogram", histogram, *words)

    return run


def test_the_curve_is_printed(warmup: Command) -> None:
    """The first line is what `build` takes; each number of buckets has a line with its padding."""
    lines = warmup("--max-buckets", "4").stdout.splitlines()
    flag, value = lines[0].split(" ")
    sizes = tuple(bucket.size_of("seqlen") for bucket in parse_buckets(value, None))
    assert (flag, sizes) == ("--seqlens", suggest(COUNTS, max_buckets=4).best.sizes)
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[lines.index("buckets  padded work  padding") + 1 :]] == [
        ["1", "37.70x", "97.3%", "#" * 45],
        ["2", "4.25x", "76.5%", "#" * 35],
        ["3", "1.40x", "28.3%", "#" * 13],
        ["4", "1.00x", "0.0%"],
    ]


def test_a_dash_is_standard_input(warmup: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"size": 7}\n9\n')))
    assert warmup(histogram="-").stdout.startswith("--seqlens 7,9\n")


def test_bad_input_is_one_error(warmup: Command) -> None:
    """What cannot be used is one line on stderr, nothing on stdout, and code 3."""
    for histogram, words, said in (
        ("absent.csv", (), "--histogram absent.csv: No such file or directory"),
        ("sizes.csv", ("--max-buckets", "65"), "65 buckets cannot be suggested"),
        ("sizes.csv", ("--multiple", "0"), "0 is no multiple"),
    ):
        done = warmup(*words, histogram=histogram)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), histogram
        assert done.stderr.startswith(f"error: {said}"), histogram


def test_it_starts_without_torch(tmp_path: Path) -> None:
    """The command runs where torch, triton and rich cannot be imported."""
    (tmp_path / "sizes").write_text("16\n560\n")
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'rich', 'numpy'): sys.modules[name] = None\n"
        "from warmup.cli import main\n"
        "main(['suggest', '--histogram', 'sizes'])\n"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
