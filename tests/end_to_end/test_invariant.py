"""``build --invariant`` on a CPU: a row of a model's output has the same bits in every bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from own_processes import MODELS, PROGRAMS, answer_of, python_in, warmup_in

from warmup.table.invariance import invariance_of
from warmup.table.store import read

pytestmark = pytest.mark.long

SIZES = "1,6,24"
MODEL = ("--model", f"{MODELS}/normed_mlp.py:NormedMLP", "--device", "cpu", "--no-bundle")


@pytest.fixture(scope="module")
def table(run_once: Callable[..., tuple[Path, str]]) -> Path:
    """Built for 1 and 24 rows, and then, in a second build, for 6."""
    words = ("-m", "warmup", "build", *MODEL, "--invariant", "--out", "rows.json")
    folder, _ = run_once("invariant", *words, "--seqlens", "1,24")
    warmup_in(folder, *words[2:], "--seqlens", SIZES)
    return folder / "rows.json"


def test_a_row_has_the_same_bits_in_every_bucket(table: Path, tmp_path: Path) -> None:
    """The rows of one bucket served beside those of another, by strict serving and its audit."""
    threads = str(read(table).provenance.runtime.device.threads)
    log = {"WARMUP_AUDIT_LOG": str(tmp_path / "audit.jsonl"), "OMP_NUM_THREADS": threads}
    program = str(PROGRAMS / "compare_rows.py")
    done = python_in(tmp_path, program, str(table), SIZES, **log)
    assert answer_of(done.stdout) == {"1": 0, "6": 0, "24": 0}
    said = warmup_in(tmp_path, "audit", log["WARMUP_AUDIT_LOG"]).stdout
    assert "invariant   kept: 2 weights with one digest each" in said


def test_a_later_bucket_takes_the_digests_of_the_table(table: Path) -> None:
    built = read(table)
    promise = invariance_of(built)
    assert promise is not None
    assert (promise.weights, promise.broken, len(built.rows)) == ({"packed_linear": 2}, (), 6)


def test_check_and_audit_say_what_is_promised(
    table: Path, built: tuple[Path, object], tmp_path: Path
) -> None:
    check = ("check", "--invariant", "--device", "cpu")
    assert (
        "invariant 2 weights with one digest each" in warmup_in(tmp_path, *check, str(table)).stdout
    )
    other = warmup_in(tmp_path, *check, str(built[0]), code=11)
    assert "not invariant: the table was not built with --invariant" in other.stderr
    log = {"WARMUP_AUDIT_LOG": str(tmp_path / "audit.jsonl")}
    program = str(PROGRAMS / "compare_rows.py")
    refused = python_in(tmp_path, program, str(table), "1,5", code=1, **log)
    assert "MissError" in refused.stderr
    said = warmup_in(tmp_path, "audit", log["WARMUP_AUDIT_LOG"]).stdout
    assert "invariant   broken by 1 decision without a row" in said


def test_what_cannot_be_invariant_is_refused(tmp_path: Path) -> None:
    for words in (("--policy", "range"), ("--pad-weights",)):
        given = (*MODEL, "--seqlens", "1,6", "--out", "t.json", "--invariant", *words)
        done = warmup_in(tmp_path, "build", *given, code=3)
        assert "invariant" in done.stderr, words
        assert done.stderr.count("\n") <= 3, (words, done.stderr)
