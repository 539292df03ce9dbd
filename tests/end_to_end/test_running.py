"""`warmup run`: commands that know nothing of warmup, each in real processes, on CPU."""

from __future__ import annotations

import importlib.util
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_table

from warmup.core.errors import SettingsError, TableError
from warmup.serving.audit import audit
from warmup.serving.run import run
from warmup.table.store import write

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"

Done = subprocess.CompletedProcess[str]
Built = tuple[Path, dict[str, Any]]


def environment(folder: Path, *paths: Path, **extra: str) -> dict[str, str]:
    """Return an environment with this checkout and *paths* importable."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    return {
        **outer,
        "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT))),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        **extra,
    }


def warmup_run(folder: Path, *words: str, paths: tuple[Path, ...] = (), **extra: str) -> Done:
    """Run ``warmup run`` with *words* in *folder*."""
    return subprocess.run(
        [sys.executable, "-m", "warmup", "run", *words],
        env=environment(folder, *paths, **extra),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def start(folder: Path, table: Path, *command: str) -> subprocess.Popen[str]:
    """Start ``warmup run`` of *command*, with TMPDIR in *folder*; return when it has said ready."""
    temporary = folder / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "warmup", "run", "--table", str(table), "--", *command],
        env=environment(folder, TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A sound table for another device; programs that do not compile never ask it."""
    path = tmp_path / "table.json"
    write(path, make_table())
    return path


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A folder with a torch that has no inductor, so that no table can be installed."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(
        '__version__ = "2.13.0"\n\nclass cuda:\n    is_available = staticmethod(bool)\n\n'
        "def compile(model):\n    return model\n"
    )
    return package.parent


def test_a_program_in_default_mode_is_answered_by_the_table(built: Built, tmp_path: Path) -> None:
    """Plain torch.compile, no option set, both decisions are hits; output and code stay its own."""
    program = (str(PROGRAMS / "run_mlp.py"), "--exit", "7", "16")
    words = ("--table", str(built[0]), "--on-miss", "strict", "--freezing", "--", sys.executable)
    done = warmup_run(tmp_path, *words, *program)
    assert done.stderr.splitlines()[-1] == (
        "warmup run: hits 2, misses 0, uncovered 0, from cache 0 graphs (0 decisions), "
        "processes 1, silent 0"
    )
    assert (done.stdout, done.returncode) == ("served 16\n", 7)


@pytest.mark.long
def test_a_spawned_process_installs_too(built: Built, tmp_path: Path) -> None:
    """Only the process that multiprocessing spawned compiles; it is the one that installs."""
    words = ("--", sys.executable, str(PROGRAMS / "run_mlp.py"), "--spawn", "16", "32")
    done = warmup_run(tmp_path, "--table", str(built[0]), "--freezing", *words)
    assert (done.returncode, done.stdout) == (0, "served 16\nserved 32\n")
    assert "hits 2, misses 2 (not_in_table 2), uncovered 0" in done.stderr
    assert done.stderr.endswith("processes 1, silent 0\n")


@pytest.mark.long
def test_a_program_that_does_without_torch_compile_is_answered_too(
    built: Built, tmp_path: Path
) -> None:
    """torch._dynamo.optimize: the table is there before the first frame is compiled."""
    words = ("--", sys.executable, str(PROGRAMS / "run_mlp.py"), "--direct", "16")
    done = warmup_run(tmp_path, "--table", str(built[0]), "--freezing", *words)
    assert "hits 2, misses 0, uncovered 0" in done.stderr


def test_what_cannot_be_started_is_an_error(table: Path, tmp_path: Path) -> None:
    """A table that cannot be read, an audit log that is no file, and a command that is not there.

    The command is not started; a FIFO is not waited for.
    """
    damaged, started = tmp_path / "damaged.json", tmp_path / "started"
    damaged.write_text('{"schema": 1')
    with pytest.raises(TableError):
        run(["touch", str(started)], table=damaged)
    os.mkfifo(tmp_path / "fifo")
    for log in ("/dev/full", "/dev/zero", "fifo", "."):
        with pytest.raises(SettingsError, match=r"^the audit log .* (is no regular file|Is a dir)"):
            run(["touch", str(started)], table=table, audit_log=tmp_path / log)
        assert not started.exists(), log
    with pytest.raises(SettingsError, match=r"^no-such-program cannot be started: No such file"):
        run(["no-such-program"], table=table)


def test_sigterm_reaches_the_command(table: Path, tmp_path: Path) -> None:
    """SIGTERM goes to the command, whose handler decides; so does SIGUSR1."""
    process = start(tmp_path, table, sys.executable, str(PROGRAMS / "run_signals.py"))
    assert process.stdout is not None
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == f"got {signal.SIGTERM.value}\n"
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate()
    assert (process.returncode, "warmup run: hits 0" in stderr) == (1, True)


def test_a_command_killed_by_a_signal_gives_128_and_its_number(table: Path, tmp_path: Path) -> None:
    """Death by SIGTERM is 143, and the temporary log is gone by then."""
    process = start(tmp_path, table, "sh", "-c", "echo ready; exec sleep 600")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert (process.returncode, list((tmp_path / "tmp").iterdir())) == (143, [])


def test_ctrl_c_on_a_terminal_reaches_the_command_once(table: Path, tmp_path: Path) -> None:
    """A terminal tells parent and command both; the parent does not tell the command again."""
    words = ("--table", str(table), "--", sys.executable, str(PROGRAMS / "run_signals.py"))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(  # noqa: S606  the command under test
            sys.executable,
            [sys.executable, "-m", "warmup", "run", *words],
            environment(tmp_path),
        )
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        seen = b""
        while b"ready" not in seen:
            seen += screen.read(100)
        screen.write(b"\x03")
        while b"got" not in seen:
            seen += screen.read(100)
        os.kill(pid, signal.SIGUSR1)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_a_program_without_torch_loads_neither_torch_nor_warmup(
    table: Path, tmp_path: Path
) -> None:
    """A Python program that does not import torch has loaded nothing of ours but the startup."""
    code = "import sys; print(sorted({'torch', 'warmup', 'typing', 'functools'} & {*sys.modules}))"
    command = (sys.executable, "-I", "-c", code), (sys.executable, "-c", code)
    without, with_startup = (
        warmup_run(tmp_path, "--table", str(table), "--", *words).stdout for words in command
    )
    assert without == with_startup


def test_an_existing_sitecustomize_still_runs(table: Path, tmp_path: Path) -> None:
    """The sitecustomize that was found before is run, and is what the name means to a program."""
    other = tmp_path / "other"
    other.mkdir()
    other.joinpath("sitecustomize.py").write_text("import sys\nsys.path.append('added')\n")
    code = "import sitecustomize, sys; print(sitecustomize.__file__, 'added' in sys.path)"
    words = ("--table", str(table), "--", sys.executable, "-c", code)
    done = warmup_run(tmp_path, *words, paths=(other,))
    assert done.stdout == f"{other / 'sitecustomize.py'} True\n"


def test_compile_workers_are_left_alone(table: Path, tmp_path: Path) -> None:
    """The finder is there in a program, and not in a file that is called as torch's worker is."""
    worker = Path("torch/_inductor/compile_worker/__main__.py")
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    assert (Path(torch.origin).parents[1] / worker).is_file()
    show = "import sys; print(sum(type(f).__name__ == 'TableStartup' for f in sys.meta_path))"
    for path in (tmp_path / "program.py", tmp_path / worker):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(show)
    both = f"{sys.executable} program.py; {sys.executable} {worker} --workers=2"
    done = warmup_run(tmp_path, "--table", str(table), "--", "sh", "-c", both)
    assert done.stdout.split() == ["1", "0"]


def test_fallback_goes_on_without_a_table_and_says_so(
    table: Path, tmp_path: Path, fake_torch: Path
) -> None:
    """A process that cannot install says it once on stderr, compiles on, and is counted."""
    words = ("--table", str(table), "--", sys.executable, str(PROGRAMS / "run_compile.py"), "2")
    done = warmup_run(tmp_path, *words, paths=(fake_torch,))
    first, meanings, summary = done.stderr.splitlines()
    assert done.stdout == "compiled\ncompiled\n"
    assert first.startswith("warmup run: no table in process ")
    assert meanings.startswith("warmup run: hits: answered by a row of the table; misses: ")
    assert summary.endswith("processes 0, silent 0, could not install 1")


def test_strict_refuses_every_compile_without_a_table(
    table: Path, tmp_path: Path, fake_torch: Path
) -> None:
    """Nothing starts; where a mismatch is allowed, each compile of a process has the error."""
    program = (sys.executable, str(PROGRAMS / "run_compile.py"), "2")
    words = ("--table", str(table), "--on-miss", "strict")
    refused = warmup_run(tmp_path, *words, "--", *program, paths=(fake_torch,))
    assert (refused.returncode, refused.stdout) == (10, "")
    assert len(refused.stderr.splitlines()) == 1
    done = warmup_run(tmp_path, *words, "--allow-mismatch", "--", *program, paths=(fake_torch,))
    assert done.stdout == "ModuleNotFoundError\nModuleNotFoundError\n"
    assert done.stderr.endswith("could not install 1\n")


def test_a_kept_log_is_appended_to_and_only_this_run_is_summed(table: Path, tmp_path: Path) -> None:
    """Events of earlier runs stay in a named log, and are not in the summary.

    A log that was truncated meanwhile, as copytruncate of logrotate does, is read from its start.
    """
    log = tmp_path / "audit.jsonl"
    event = '{"event":"benchmark.uncovered","schema":1,"run":"R","pid":1,"seq":SEQ,"site":"pad"}'
    log.write_text(event.replace("SEQ", "0") + "\n")
    later = event.replace("SEQ", "1").replace("R", "S")
    report = run(["sh", "-c", f"echo '{later}' >> $WARMUP_AUDIT_LOG"], table=table, audit_log=log)
    assert (report.audit.uncovered, audit([log]).uncovered) == ({"pad": 1}, {"pad": 2})
    log.write_text("x" * 5000 + "\n")
    report = run(["sh", "-c", f"echo '{later}' > $WARMUP_AUDIT_LOG"], table=table, audit_log=log)
    assert report.audit.uncovered == {"pad": 1}


HOSTILE = """
nine=$(printf '%4299s' | tr ' ' 9)
echo '{"event":"graph.cached","schema":1,"run":"r","pid":1,"seq":0,"decisions":'$nine'}'
echo '{"event":"graph.cached","schema":1,"run":"r","pid":1,"seq":1,"decisions":'$nine'9999}'
echo '{"event":["lookup.hit"],"schema":1}'
echo '{"event":"lookup.hit","schema":1,"run":"r","pid":1,"seq":2,"key":"k","digest":[[[[]]]]}'
echo '{"event":"lookup.hit","schema":1,"run":"r","pid":1,"seq":3,"key":"k"}'
head -c 2000000 /dev/zero
"""


def test_nothing_in_the_log_loses_the_exit_code(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged events are counted; of a log that cannot be read the last line says why."""
    script = f"{{ {HOSTILE} }} >> $WARMUP_AUDIT_LOG; exit 7"
    report = run(["bash", "-c", script], table=table, audit_log=tmp_path / "log")
    assert (report.exit_code, report.audit.damaged, report.audit.hits) == (7, 3, {"k": 1})

    def fail(*_args: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    report = run(["sh", "-c", "exit 7"], table=table, audit_log=tmp_path / "other")
    assert report.exit_code == 7
    assert "the log was not read to its end (OSError: [Errno 5]" in str(report)


def test_an_ignored_signal_of_children_loses_no_exit_code(table: Path, tmp_path: Path) -> None:
    """A parent may leave SIGCHLD ignored; the kernel would then drop the code."""
    words = [sys.executable, "-m", "warmup", "run", "--table", str(table), "--", "false"]
    done = subprocess.run(
        ["/bin/bash", "-c", f"trap '' CHLD; exec {shlex.join(words)}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr.count("warmup run: hits 0")) == (1, 1)


def test_options_and_paths_reach_the_command(table: Path, tmp_path: Path) -> None:
    """An option behind the command is the command's, without the two dashes too.

    A bundle is named by its whole path, since the command may run elsewhere. A named log is read
    where it is, and needs no temporary folder.
    """
    own = ("--table", str(table))
    assert warmup_run(tmp_path, *own, "echo", "--table", "its").stdout == "--table its\n"
    words = (*own, "--bundle", "t.bundle", "--audit-log", "log", "--", "sh", "-c")
    code = "echo $WARMUP_BUNDLE; exit 7"
    done = warmup_run(tmp_path, *words, code, TMPDIR=str(tmp_path / "absent"))
    assert (done.stdout, done.returncode) == (f"{tmp_path / 't.bundle'}\n", 7)
    assert "Traceback" not in done.stderr


def test_sigterm_ends_the_reading_of_a_log(table: Path, tmp_path: Path) -> None:
    """After the command has ended; its exit code stays, and the last line says what happened."""
    script = "yes | head -c 60000000 >> $WARMUP_AUDIT_LOG; echo $$; exit 7"
    words = ("--table", str(table), "--audit-log", str(tmp_path / "log"), "sh", "-c", script)
    process = subprocess.Popen(
        [sys.executable, "-m", "warmup", "run", *words],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    command = Path("/proc") / process.stdout.readline().strip()
    while command.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 7
    assert "the log was not read to its end (SIGTERM)" in stderr
