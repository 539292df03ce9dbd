"""A table that is of no use says so: on stderr, in the log, in the audit log and by exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.serving.audit import audit
from warmup.table.store import read, write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
EVENT = '{"event":"benchmark.uncovered","schema":1,"run":"R","pid":1,"seq":0,"site":"pad"}'
HIT = '{"event":"lookup.hit","schema":1,"run":"R","pid":1,"seq":1,"key":"k"}'
SERVE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from plain_script import Net
with torch.no_grad():
    torch.compile(Net().eval(), dynamic=False)(torch.ones(8, 32))
print("served")
"""

Done = subprocess.CompletedProcess[str]
Built = tuple[Path, dict[str, Any]]
Serve = Callable[..., Done]


def python(folder: Path, *words: str, **variables: str) -> Done:
    """Run Python in *folder*, with empty caches there."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    return run_forked(*words, env={**outer, **caches, **variables}, cwd=folder)


def notices(done: Done) -> list[str]:
    """Return the lines of warmup on stderr."""
    return [line for line in done.stderr.splitlines() if line.startswith("warmup: ")]


@pytest.fixture(scope="module")
def useless(net: Built, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """Installed late, gradients on, then dynamic; each twice, and warnings are errors."""
    folder = tmp_path_factory.mktemp("useless")
    words = (str(PROGRAMS / "serve_loudly.py"), str(net[0]), "useless", "server.log")
    variables = {
        "WARMUP_AUDIT_LOG": str(folder / "audit.jsonl"),
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE": "EXHAUSTIVE",
    }
    done = python(folder, "-W", "error::UserWarning", *words, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done, folder


def test_each_cause_is_said_once_with_its_remedy(useless: tuple[Done, Path]) -> None:
    """Although the program's root logger has a handler, and each cause occurs more than once.

    Warnings as errors end no server. The causes are events too, and no entries of the log, which
    has sentences: at the install, when the process was idle, and at its exit.
    """
    done, folder = useless
    for said, remedy in (
        ("was installed late", "install before the first call"),
        (
            "compiled with gradients on",
            "call the compiled function under torch.no_grad() or torch.inference_mode()",
        ),
        ("(dynamic_dim)", "compile with dynamic=False, or build for the range: --policy range"),
        ("search_space is EXHAUSTIVE here", "remove the setting while the table is installed"),
    ):
        (line,) = (line for line in notices(done) if said in line)
        assert remedy in line, said
    log = (folder / "server.log").read_text().splitlines()
    assert [line.split(":")[0] for line in log] == ["INFO", "WARNING", "WARNING"]
    installed, settled, ended = (line.split(":", 2)[2] for line in log)
    assert installed.startswith("installed ")
    assert settled == f"settled: {ended}"
    assert "[dynamic_dim: compile with dynamic=False" in ended
    report = audit([folder / "audit.jsonl"])
    assert (report.bypassed, report.unfinished) == ({"late": 1, "gradients": 1}, ())


def test_a_killed_process_leaves_what_it_knew(net: Built, tmp_path: Path) -> None:
    """Its hit and its miss count; the missing summary is seen, and the run is not silent.

    With WARMUP_QUIET the miss is not printed; with WARMUP_LOG_EVENTS the ordinary log has the
    same audit.
    """
    words = (str(PROGRAMS / "serve_loudly.py"), str(net[0]), "killed", "server.log")
    variables = {"WARMUP_QUIET": "1", "WARMUP_LOG_EVENTS": "1"}
    done = python(tmp_path, *words, WARMUP_AUDIT_LOG=str(tmp_path / "audit.jsonl"), **variables)
    assert done.returncode == -signal.SIGKILL
    report = audit([tmp_path / "audit.jsonl"])
    assert (sum(report.hits.values()), report.reasons) == (1, {"not_in_table": 1})
    assert (len(report.unfinished), report.silent) == (1, ())
    assert audit([tmp_path / "server.log"]) == report
    assert notices(done) == []


def test_a_process_that_asked_nothing_says_so_at_its_end(net: Built, tmp_path: Path) -> None:
    """It has compiled, and no row could ever be asked for."""
    words = (str(PROGRAMS / "serve_loudly.py"), str(net[0]), "unasked")
    done = python(tmp_path, *words, WARMUP_AUDIT_LOG="audit.jsonl")
    (line,) = notices(done)
    assert "net.json was not used: process" in line
    assert audit([tmp_path / "audit.jsonl"]).bypassed == {"unasked": 1}


def test_a_strict_miss_is_the_last_line_of_a_script(net: Built, tmp_path: Path) -> None:
    """After the traceback that torch makes of it: key, reason and remedy."""
    done = python(tmp_path, str(PROGRAMS / "serve_loudly.py"), str(net[0]), "strict")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("warmup: the program ended at a miss: no row answers `packed_linear m=7")
    assert "(not_in_table)" in last
    assert 'build this bucket, or pad to one that was built; or serve with on_miss="fall' in last


@pytest.fixture(scope="module")
def other_machine(net: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same table, tuned with another number of threads."""
    table = read(net[0])
    runtime = table.provenance.runtime
    device = replace(runtime.device, threads=(runtime.device.threads or 1) + 1)
    provenance = replace(table.provenance, runtime=replace(runtime, device=device))
    path = tmp_path_factory.mktemp("other") / "other.json"
    write(path, replace(table, provenance=provenance))
    return path


def test_a_table_of_another_machine_takes_no_server_down(
    other_machine: Path, tmp_path: Path
) -> None:
    """In fallback the program serves as without a table, and one sentence names both machines."""
    program = (sys.executable, "-c", SERVE, str(PROGRAMS / "models"))
    for fail_on, code in (("miss", 0), ("mismatch", 1)):
        words = ("--table", str(other_machine), "--fail-on", fail_on, "--")
        done = python(tmp_path, "-m", "warmup", "run", *words, *program)
        assert (done.returncode, done.stdout) == (code, "served\n"), fail_on
        (line,) = notices(done)
        assert "other.json: tuned on " in line, fail_on
        assert ", and here is " in line, fail_on
        assert done.stderr.endswith("processes 0, silent 0, mismatch 1\n"), fail_on


def test_strict_run_refuses_before_the_program_starts(other_machine: Path, tmp_path: Path) -> None:
    """One sentence, the code of check, and nothing of the program."""
    words = ("--on-miss", "strict", "--table", str(other_machine), "--", "echo", "started")
    done = python(tmp_path, "-m", "warmup", "run", *words)
    assert (done.returncode, done.stdout) == (10, "")
    (line,) = done.stderr.splitlines()
    assert "other.json: device.threads: expected " in line
    assert line.endswith(
        "of a program that sets its number of threads itself, add --allow-mismatch"
    )


def test_a_build_into_the_table_of_another_machine_ends_the_program(
    other_machine: Path, tmp_path: Path
) -> None:
    """At its first compile, without a traceback: what differs, and that nothing was written."""
    before = other_machine.read_bytes()
    program = (sys.executable, "-c", SERVE, str(PROGRAMS / "models"))
    done = python(tmp_path, "-m", "warmup", "build", "--out", str(other_machine), "--", *program)
    assert (done.returncode, done.stdout, other_machine.read_bytes()) == (3, "", before)
    assert "other.json: device.threads: table " in done.stderr.splitlines()[0]
    assert f"nothing was written to {other_machine}; " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_where_a_mismatch_is_allowed_every_lookup_is_a_miss(
    other_machine: Path, tmp_path: Path
) -> None:
    """With --allow-mismatch `run` serves and counts, and --fail-on miss fails."""
    program = (sys.executable, "-c", SERVE, str(PROGRAMS / "models"))
    words = ("--table", str(other_machine), "--allow-mismatch", "--fail-on", "miss", "--")
    done = python(tmp_path, "-m", "warmup", "run", *words, *program)
    assert (done.returncode, done.stdout) == (1, "served\n")
    assert "warmup run: failed on: miss\n" in done.stderr
    assert "warmup run: hits 0, misses 1 (wrong_device 1), uncovered 0" in done.stderr


def test_run_fails_on_demand_unless_the_command_failed(net: Built, tmp_path: Path) -> None:
    """--fail-on is that of audit, and the command's own failure has precedence."""
    append = f"echo '{EVENT}' >> $WARMUP_AUDIT_LOG; echo '{HIT}' >> $WARMUP_AUDIT_LOG"
    for case in (("uncovered", 0, 1), ("uncovered", 3, 3), ("miss", 0, 0), ("silent", 0, 0)):
        fail_on, own, code = case
        words = ("--table", str(net[0]), "--fail-on", fail_on, "--", "sh", "-c")
        done = python(tmp_path, "-m", "warmup", "run", *words, f"{append}; exit {own}")
        assert done.returncode == code, case


def test_run_of_a_command_that_uses_no_table_fails_as_silent(net: Built, tmp_path: Path) -> None:
    """No process installed anything: a line says so, and --fail-on silent is 1."""
    words = ("--table", str(net[0]), "--fail-on", "silent", "--", "true")
    done = python(tmp_path, "-m", "warmup", "run", *words)
    assert done.returncode == 1
    assert "warmup run: no process used the table: none compiled, or none" in done.stderr
