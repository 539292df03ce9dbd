"""`warmup check`: exit codes, one line per problem, JSON and the time limit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from own_processes import Done, run_python
from sample_tables import make_key, make_row, make_table

from warmup.core.device import Runtime
from warmup.core.rows import Flag
from warmup.table.codec import digest_of, encode

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def here() -> Runtime:
    from warmup.inductor import connect

    return connect().runtime("cpu")


@pytest.fixture
def folder(tmp_path: Path, here: Runtime) -> Path:
    tables = {
        "ready": make_table(runtime=here),
        "patched": make_table(runtime=replace(here, torch=f"{here.torch.split('+')[0]}.post9")),
        "other": make_table(),
        "upgraded": make_table(runtime=replace(here, torch="2.99.0")),
        "noisy": make_table(
            {
                make_key(m): replace(row, evidence=replace(row.evidence, flags=flags))
                for m, flags in ((16, ()), (32, (Flag.UNSTABLE,)), (64, (Flag.UNSTABLE,)))
                for row in (make_row(),)
            },
            runtime=here,
        ),
    }
    policy = replace(tables["ready"].policy, options={"size_asserts": False})
    tables["foreign"] = replace(tables["ready"], policy=policy)
    for name, table in tables.items():
        (tmp_path / f"{name}.json").write_text(encode(table))
    (tmp_path / "damaged.json").write_text(encode(tables["ready"])[:-200])
    (tmp_path / "newer.json").write_text('{"schema": 99}')
    return tmp_path


@pytest.fixture
def check(folder: Path, run_main: Command) -> Command:
    """``check("ready.json", "--json")`` on CPU, in this process, in the folder of the tables."""
    return lambda *words: run_main("check", "--device", "cpu", *words)


def test_each_outcome_has_its_code_and_its_document(check: Command) -> None:
    """0 ready, 10 for another device or runtime, 12 for no valid table.

    Every line on stderr is one problem or one warning, and the document has as many problems.
    """
    for table, state, code in (
        ("ready", "ready", 0),
        ("patched", "ready", 0),
        ("other", "mismatch", 10),
        ("upgraded", "mismatch", 10),
        ("damaged", "invalid", 12),
        ("newer", "invalid", 12),
        ("foreign", "invalid", 12),
        ("absent", "invalid", 12),
    ):
        done = check(f"{table}.json", "--json", "--timeout", "600")
        found = json.loads(done.stdout)
        assert (found["state"], found["exit_code"], done.returncode) == (state, code, code), table
        lines = done.stderr.splitlines()
        assert all(line.startswith(("error: ", "warning: ")) for line in lines), table
        assert len(found["problems"]) == done.stderr.count("error: "), table
        wanted = {"digest", "mismatches", "remarks", "buckets", "rows", "here", "tuned_on"}
        assert wanted <= found.keys(), table


def test_each_differing_field_is_a_line(check: Command, here: Runtime) -> None:
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    done = check("upgraded.json", "--json")
    assert done.stderr == f"error: torch minor: expected 2.99, found {minor}\n"
    (mismatch,) = json.loads(done.stdout)["mismatches"]
    found = {"field": "torch minor", "expected": "2.99", "found": minor, "is_hard": True}
    assert mismatch == found
    (line,) = check("patched.json").stderr.splitlines()
    assert line.startswith("warning: torch: expected ")
    digest = digest_of(make_table(runtime=here))
    assert check("ready.json", "--expect-digest", digest).returncode == 0
    done = check("ready.json", "--expect-digest", "a" * 64)
    said = f"error: digest: expected {'a' * 64}, found {digest}\n"
    assert (done.returncode, done.stderr) == (10, said)
    done = check("ready.json", "--device", "cuda:99")  # a pod without the GPU it was promised
    assert (done.returncode, "CUDA devices here" in done.stderr) == (10, True)


def test_unstable_rows_are_counted_and_can_fail_a_check(check: Command) -> None:
    done = check("noisy.json")
    assert (done.returncode, "unstable  2" in done.stdout.splitlines()) == (0, True)
    assert done.stderr.startswith("warning: 2 of 3 rows are unstable, ")
    done = check("noisy.json", "--fail-on", "unstable")
    assert done.returncode == 11
    assert done.stderr.startswith("error: 2 of 3 rows are unstable: measure them again with ")
    assert check("ready.json", "--fail-on", "unstable").returncode == 0


def test_a_setting_that_cannot_be_used_is_code_3(check: Command) -> None:
    """A wrong option is one error line and the code of every command, not an outcome.

    Buckets of ranges that descend or overlap are told before the model is looked for.
    """
    absent = "--prime --model absent.py --policy range --seqlens"
    for words, said in (
        ("--prime", "belong together"),
        ("--model net.py", "belong together"),
        ("--expect-digest abc", "abc"),
        ("--verify 0%", "is no sample of rows"),
        ("--prime --model net.py", "error: "),
        (f"{absent} 8,4", "4 follows 8"),
        (f"{absent} 2..16,10..32", "10 follows 16"),
        (f"{absent} 4..16,8", "more than once"),
    ):
        done = check("ready.json", *words.split())
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), words
        assert said in done.stderr, words


def test_a_bad_bundle_is_one_line_and_code_11(check: Command, folder: Path) -> None:
    for kind in ("fifo", "zeros", "absent"):
        bundle = folder / f"{kind}.bundle"
        if kind == "fifo":
            os.mkfifo(bundle)
        elif kind == "zeros":
            bundle.symlink_to("/dev/zero")
        done = check("ready.json", "--bundle", str(bundle))
        assert (done.returncode, len(done.stderr.splitlines())) == (11, 1), kind
        assert done.stderr.startswith(f"error: bundle {bundle} is not used: "), kind


def test_the_time_limit_prints_json_and_names_the_bucket() -> None:
    code = """
import sys, time
from pathlib import Path
from warmup.core.buckets import Bucket
from warmup.serving.check import PrimedBucket
from warmup.cli.check import CheckRun
run = CheckRun(Path("t.json"), as_json=True)
first, second = Bucket((("seqlen", 16),)), Bucket((("seqlen", 64),))
run.bucket_started(first)
run.bucket_finished(PrimedBucket(
    bucket=first, hits=2, cached=0, cached_misses=0, misses=(), uncovered=(), phases={},
    problem=None))
run.bucket_started(second)
with run.limited(0.05):
    time.sleep(60)
"""
    done = run_python("-c", code)
    said = "error: timeout: 0.05 s passed in bucket seqlen=64\n"
    assert (done.returncode, done.stderr) == (11, said)
    assert [each["bucket"] for each in json.loads(done.stdout)["buckets"]] == [{"seqlen": 16}]
