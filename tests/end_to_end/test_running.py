"""`warmup run`: commands that know nothing of warmup, each in real processes, on CPU."""

from __future__ import annotations

import importlib.util
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from own_processes import PROGRAMS, ROOT, Built, Done, environment
from sample_tables import make_table

from warmup.core.errors import SettingsError, TableError
from warmup.serving.audit import audit
from warmup.serving.run import run
from warmup.table.store import write

SIGNALS = (sys.executable, str(PROGRAMS / "run_signals.py"))


def words_of(table: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "warmup", "run", "--table", str(table), *words]


def environment_in(folder: Path, *paths: Path) -> dict[str, str]:
    """Return variables with *paths* and this checkout importable, and files in *folder*."""
    path = os.pathsep.join(map(str, (*paths, ROOT)))
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    return {**environment(), "PYTHONPATH": path, **own}


def warmup_run(
    table: Path, folder: Path, *words: str, paths: tuple[Path, ...] = (), **variables: str
) -> Done:
    return subprocess.run(
        words_of(table, *words),
        env=environment_in(folder, *paths) | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def start(table: Path, folder: Path, *command: str) -> subprocess.Popen[str]:
    """Start ``warmup run`` of *command*; return when it has said ready."""
    process = subprocess.Popen(
        words_of(table, "--", *command),
        env=environment_in(folder),
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
    """Plain torch.compile, no option set; output and exit code stay the program's own.

    The bundle that the build wrote beside the table is used, and named in the last line.
    """
    program = (sys.executable, str(PROGRAMS / "run_mlp.py"), "--exit", "7", "16")
    done = warmup_run(built[0], tmp_path, "--on-miss", "strict", "--freezing", "--", *program)
    assert done.stderr.splitlines()[-1] == (
        "warmup run: hits 2, misses 0, uncovered 0, from cache 0 graphs (0 decisions), "
        f"processes 1, silent 0, bundle {built[0].with_suffix('.bundle')} is used"
    )
    assert (done.stdout, done.returncode) == ("served 16\n", 7)


@pytest.mark.nightly
def test_a_spawned_process_that_does_without_torch_compile_installs_too(
    built: Built, tmp_path: Path
) -> None:
    program = (sys.executable, str(PROGRAMS / "run_mlp.py"), "--spawn", "16", "32")
    done = warmup_run(built[0], tmp_path, "--freezing", "--", *program)
    assert (done.returncode, done.stdout) == (0, "served 16\nserved 32\n")
    assert "hits 2, misses 2 (not_in_table 2), uncovered 0" in done.stderr
    assert "processes 1, silent 0, bundle " in done.stderr


def test_what_cannot_be_started_is_an_error(table: Path, tmp_path: Path) -> None:
    """A damaged table, an audit log that is no file (a FIFO is not waited for), no such command."""
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


def test_signals_reach_the_command_and_are_its_exit_code(table: Path, tmp_path: Path) -> None:
    """A handler decides; else the code is 128 and the number, and the temporary log is gone."""
    process = start(table, tmp_path, *SIGNALS)
    assert process.stdout is not None
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == f"got {signal.SIGTERM.value}\n"
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate()
    assert (process.returncode, "warmup run: hits 0" in stderr) == (1, True)
    process = start(table, tmp_path, "sh", "-c", "echo ready; exec sleep 600")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert (process.returncode, list((tmp_path / "tmp").iterdir())) == (143, [])


def test_ctrl_c_on_a_terminal_reaches_the_command_once(table: Path, tmp_path: Path) -> None:
    """A terminal tells parent and command both; the parent does not tell the command again."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = words_of(table, "--", *SIGNALS)
        os.execve(sys.executable, words, environment_in(tmp_path))  # noqa: S606  the command under test
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
    code = "import sys; print(sorted({'torch', 'warmup', 'typing', 'functools'} & {*sys.modules}))"
    commands = (sys.executable, "-I", "-c", code), (sys.executable, "-c", code)
    without, with_startup = (warmup_run(table, tmp_path, "--", *each).stdout for each in commands)
    assert without == with_startup


def test_an_existing_sitecustomize_still_runs(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    other.joinpath("sitecustomize.py").write_text("import sys\nsys.path.append('added')\n")
    code = "import sitecustomize, sys; print(sitecustomize.__file__, 'added' in sys.path)"
    done = warmup_run(table, tmp_path, "--", sys.executable, "-c", code, paths=(other,))
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
    assert warmup_run(table, tmp_path, "--", "sh", "-c", both).stdout.split() == ["1", "0"]


def test_without_a_table_fallback_says_so_and_strict_refuses(
    table: Path, tmp_path: Path, fake_torch: Path
) -> None:
    """Where a mismatch is allowed, strict raises at each compile; else nothing starts."""
    program, strict = (sys.executable, str(PROGRAMS / "run_compile.py"), "2"), "--on-miss=strict"
    done = warmup_run(table, tmp_path, "--", *program, paths=(fake_torch,))
    first, meanings, summary = done.stderr.splitlines()
    assert done.stdout == "compiled\ncompiled\n"
    assert first.startswith("warmup run: no table in process ")
    assert meanings.startswith("warmup run: hits: answered by a row of the table; misses: ")
    assert summary.endswith("processes 0, silent 0, could not install 1")
    refused = warmup_run(table, tmp_path, strict, "--", *program, paths=(fake_torch,))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (10, "", 1)
    allowed = {"WARMUP_ALLOW_MISMATCH": "1"}
    done = warmup_run(table, tmp_path, strict, "--", *program, paths=(fake_torch,), **allowed)
    assert done.stdout == "ModuleNotFoundError\nModuleNotFoundError\n"
    assert done.stderr.endswith("could not install 1\n")


def test_a_kept_log_is_appended_to_and_only_this_run_is_summed(table: Path, tmp_path: Path) -> None:
    """A log that was truncated meanwhile, as logrotate does, is read from its start."""
    log = tmp_path / "audit.jsonl"
    event = '{"event":"benchmark.uncovered","schema":1,"run":"R","pid":1,"seq":SEQ,"site":"pad"}'
    log.write_text(event.replace("SEQ", "0") + "\n")
    later = event.replace("SEQ", "1").replace("R", "S")
    report = run(["sh", "-c", f"echo '{later}' >> $WARMUP_AUDIT_LOG"], table=table, audit_log=log)
    assert (report.audit.uncovered, audit([log]).uncovered) == ({"pad": 1}, {"pad": 2})
    log.write_text("x" * 5000 + "\n")
    report = run(["sh", "-c", f"echo '{later}' > $WARMUP_AUDIT_LOG"], table=table, audit_log=log)
    assert report.audit.uncovered == {"pad": 1}


def test_a_log_that_cannot_be_read_loses_no_exit_code(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line says why."""

    def fail(*_args: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    report = run(["sh", "-c", "exit 7"], table=table, audit_log=tmp_path / "other")
    assert report.exit_code == 7
    assert "the log was not read to its end (OSError: [Errno 5]" in str(report)


def test_an_ignored_signal_of_children_loses_no_exit_code(table: Path, tmp_path: Path) -> None:
    """A parent may leave SIGCHLD ignored; the kernel would then drop the code."""
    words = f"trap '' CHLD; exec {shlex.join(words_of(table, '--', 'false'))}"
    done = subprocess.run(
        ["/bin/bash", "-c", words],
        env=environment_in(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("warmup run: hits 0")) == (1, 1)


def test_options_and_paths_reach_the_command(table: Path, tmp_path: Path) -> None:
    """An option behind the command is the command's; a bundle is named by its whole path."""
    assert warmup_run(table, tmp_path, "echo", "--table", "its").stdout == "--table its\n"
    words = ("--bundle", "t.bundle", "--audit-log", "log", "--", "sh", "-c", "echo $WARMUP_BUNDLE")
    assert warmup_run(table, tmp_path, *words).stdout == f"{tmp_path / 't.bundle'}\n"
