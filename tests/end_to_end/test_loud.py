"""A table that is of no use says so: on stderr, in the log, in the audit log and by exit codes."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from own_processes import MODELS, PROGRAMS, Built, Done, python_in, warmup_in

from warmup.serving.audit import audit
from warmup.table.store import read, write

pytestmark = pytest.mark.long

LOUD = str(PROGRAMS / "serve_loudly.py")
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

PROGRAM = (sys.executable, "-c", SERVE, str(MODELS))


def notices(done: Done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("warmup: ")]


def test_each_cause_is_said_once_with_its_remedy(net: Built, tmp_path: Path) -> None:
    """Installed late, gradients on, then dynamic; each twice, and warnings are errors.

    They end no server. The causes are events too, and no entries of the program's own log, which
    has sentences: at the install, when the process was idle, and at its exit.
    """
    words = ("-W", "error::UserWarning", LOUD, str(net[0]), "useless", "server.log")
    space = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE": "EXHAUSTIVE"}
    done = python_in(tmp_path, *words, WARMUP_AUDIT_LOG="audit.jsonl", **space)
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
    log = (tmp_path / "server.log").read_text().splitlines()
    assert [line.split(":")[0] for line in log] == ["INFO", "INFO", "WARNING", "WARNING"]
    bundle, installed, settled, ended = (line.split(":", 2)[2] for line in log)
    assert bundle.startswith("bundle ")
    assert installed.startswith("installed ")
    assert settled == f"settled: {ended}"
    assert "[dynamic_dim: compile with dynamic=False" in ended
    report = audit([tmp_path / "audit.jsonl"])
    assert (report.bypassed, report.unfinished) == ({"late": 1, "gradients": 1}, ())


def test_a_killed_process_leaves_what_it_knew(net: Built, tmp_path: Path) -> None:
    """Its hit and its miss count; the missing summary is seen, and the run is not silent.

    With WARMUP_QUIET nothing is printed; with WARMUP_LOG_EVENTS the ordinary log has the same.
    """
    words = (LOUD, str(net[0]), "killed", "server.log")
    variables = {"WARMUP_QUIET": "1", "WARMUP_LOG_EVENTS": "1", "WARMUP_AUDIT_LOG": "audit.jsonl"}
    done = python_in(tmp_path, *words, code=-signal.SIGKILL, **variables)
    report = audit([tmp_path / "audit.jsonl"])
    assert (sum(report.hits.values()), report.reasons) == (1, {"not_in_table": 1})
    assert (len(report.unfinished), report.silent) == (1, ())
    assert audit([tmp_path / "server.log"]) == report
    assert notices(done) == []


def test_a_process_that_asked_nothing_says_so_at_its_end(net: Built, tmp_path: Path) -> None:
    done = python_in(tmp_path, LOUD, str(net[0]), "unasked", WARMUP_AUDIT_LOG="audit.jsonl")
    (line,) = notices(done)
    assert "net.json was not used: process" in line
    assert audit([tmp_path / "audit.jsonl"]).bypassed == {"unasked": 1}


def test_a_strict_miss_is_the_last_line_of_a_script(net: Built, tmp_path: Path) -> None:
    done = python_in(tmp_path, LOUD, str(net[0]), "strict", code=1)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("warmup: the program ended at a miss: no row answers `packed_linear m=7")
    assert "(not_in_table)" in last
    assert 'build this bucket, or pad to one that was built; or serve with on_miss="fall' in last


@pytest.fixture(scope="module")
def other_machine(net: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    """In fallback one sentence names both machines; where it is allowed, every lookup misses."""
    table = ("run", "--table", str(other_machine))
    done = warmup_in(tmp_path, *table, "--fail-on", "mismatch", "--", *PROGRAM, code=1)
    assert done.stdout == "served\n"
    (line,) = notices(done)
    assert "other.json: tuned on " in line
    assert ", and here is " in line
    assert done.stderr.endswith("processes 0, silent 0, mismatch 1\n")
    words = ("--fail-on", "miss", "--", *PROGRAM)
    done = warmup_in(tmp_path, *table, *words, code=1, WARMUP_ALLOW_MISMATCH="1")
    assert done.stdout == "served\n"
    assert "warmup run: failed on: miss\n" in done.stderr
    assert "warmup run: hits 0, misses 1 (wrong_device 1), uncovered 0" in done.stderr


def test_strict_and_a_build_refuse_the_table_of_another_machine(
    other_machine: Path, tmp_path: Path
) -> None:
    """Strict before the program starts; a build at its first compile, and nothing is written."""
    words = ("run", "--on-miss", "strict", "--table", str(other_machine), "--", "echo", "started")
    done = warmup_in(tmp_path, *words, code=10)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert "other.json: device.threads: expected " in done.stderr
    assert "a program that sets its own threads, set WARMUP_ALLOW_MISMATCH=1" in done.stderr
    before = other_machine.read_bytes()
    done = warmup_in(tmp_path, "build", "--out", str(other_machine), "--", *PROGRAM, code=3)
    assert (done.stdout, other_machine.read_bytes()) == ("", before)
    assert "other.json: device.threads: table " in done.stderr.splitlines()[0]
    assert f"nothing was written to {other_machine}; " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_run_fails_on_demand_unless_the_command_failed(net: Built, tmp_path: Path) -> None:
    """--fail-on is that of audit; a command that used no table is silent."""
    events = f"echo '{EVENT}' >> $WARMUP_AUDIT_LOG; echo '{HIT}' >> $WARMUP_AUDIT_LOG"
    for fail_on, program, code in (
        ("uncovered", f"{events}; exit 0", 1),
        ("uncovered", f"{events}; exit 3", 3),
        ("miss,silent", f"{events}; exit 0", 0),
        ("silent", "true", 1),
    ):
        words = ("run", "--table", str(net[0]), "--fail-on", fail_on, "--", "sh", "-c", program)
        done = warmup_in(tmp_path, *words, code=code)
    assert "warmup run: no process used the table: none compiled, or none" in done.stderr
