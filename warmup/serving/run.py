"""`run`: runs a command with a table installed in each of its Python processes that compiles.

The table is installed by `warmup/serving/startup/sitecustomize.py`, which Python imports at start.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.errors import SettingsError, TableMismatchError
from warmup.core.events import in_brackets
from warmup.core.files import temporary_folder
from warmup.core.rows import read_flag
from warmup.core.text import counted, first_line, printable, problem_in, remedy_for
from warmup.serving.audit import AuditReport, Ledger, report_of
from warmup.serving.bundle import BundleName, name_of
from warmup.serving.check import Readiness
from warmup.serving.install import check_actions
from warmup.table.schema import OnMissName
from warmup.table.store import read

STARTUP: Final = Path(__file__).resolve().parent / "startup"
FORWARDED: Final = frozenset(
    getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "USR1", "USR2", "QUIT")
)
_AWAITED: Final = FORWARDED | {signal.SIGCHLD}
_KILLED: Final = 128  # plus the signal's number: the exit code that shells use
_POLL_S: Final = 1.0  # another thread may have taken the SIGCHLD


@dataclass(frozen=True, slots=True)
class RunReport:
    """A command's exit code, the audit of its processes, and why its log is partly ``unread``."""

    exit_code: int
    audit: AuditReport
    unread: str = ""

    def __str__(self) -> str:
        audit = self.audit
        missed = f", {audit.cached_misses} without a row" if audit.cached_misses else ""
        graphs = counted(audit.from_cache, "graph")
        decisions = counted(audit.cached_decisions, "decision")
        parts = [
            f"hits {sum(audit.hits.values())}",
            f"misses {audit.miss_count}{in_brackets(audit.reasons)}",
            f"uncovered {sum(audit.uncovered.values())}{in_brackets(audit.uncovered)}",
            f"from cache {graphs} ({decisions}{missed})",
        ]
        if audit.foreign:
            others = counted(sum(audit.foreign.values()), "graph")
            parts.append(f"foreign {others}{in_brackets(audit.foreign)}")
        parts += [f"processes {audit.runs}", f"silent {len(audit.silent)}"]
        parts += [f"bundle {text}" for text in audit.bundles]
        rare = {"mismatch": audit.mismatch, "could not install": audit.failed}
        rare["unreadable event lines"] = audit.damaged
        parts += [f"{name} {count}" for name, count in rare.items() if count]
        if self.unread:
            parts.append(f"and more, since the log was not read to its end ({self.unread})")
        return printable(f"warmup run: {', '.join(parts)}")


def run(
    command: Sequence[str],
    *,
    table: str | os.PathLike[str],
    on_miss: OnMissName = "fallback",
    uncovered: str = "library",
    audit_log: str | os.PathLike[str] | None = None,
    bundle: BundleName = None,
    freezing: bool | None = None,
) -> RunReport:
    """Run *command* to its end, with *table* installed in every Python process that compiles.

    *on_miss* is ``fallback`` or ``strict``; it, *uncovered*, *bundle* and *freezing* are as in
    `install`. With ``strict`` a process that describes this machine checks the table first. Events
    are appended to *audit_log*, or ``WARMUP_AUDIT_LOG``, or a temporary file; the report counts all
    that is appended meanwhile, which programs that share the file do, too. Signals that arrive
    meanwhile go to the command, unless a terminal has sent them to both processes. The exit code is
    the command's own, or 128 plus the number of the signal that killed the command. To be called
    from the main thread.

    Raises:
        SettingsError: an argument cannot be used, or the command cannot be started.
        TableError: the table is missing or damaged, or with ``strict`` for another device or
            runtime; the command was not started.
    """
    check_actions(on_miss, uncovered)
    _check_command(command)
    read(table)
    if on_miss == "strict" and not read_flag(None, "WARMUP_ALLOW_MISMATCH"):
        _refuse_mismatch(Path(table))
    settings = {"WARMUP_TABLE": str(Path(table).absolute()), "WARMUP_ON_MISS": str(on_miss)}
    settings["WARMUP_UNCOVERED"] = str(uncovered)
    if freezing is not None:
        settings["WARMUP_FREEZING"] = str(int(freezing))
    if bundle is not None:
        settings["WARMUP_BUNDLE"] = name_of(bundle)
    return run_with(command, settings, audit_log)


def _refuse_mismatch(table: Path) -> None:
    """Check *table* in a process of its own: torch, and the GPU's context, are not for this one."""
    words = [sys.executable, "-P", "-m", "warmup", "check", str(table.absolute()), "--json"]
    done = subprocess.run(  # noqa: S603  this Python, and a path as one argument
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    if done.returncode != Readiness.MISMATCH.exit_code:
        return  # whatever else is wrong, the processes of the command say it
    problems = tuple(map(str, json.loads(done.stdout)["problems"]))
    advice = "build a table here, or serve with --on-miss fallback, which goes on without a table"
    if all(problem.startswith("device.threads:") for problem in problems):
        advice += "; for a program that sets its own threads, set WARMUP_ALLOW_MISMATCH=1"
    raise TableMismatchError(str(table), problems, advice)


def run_with(
    command: Sequence[str],
    settings: Mapping[str, str],
    audit_log: str | os.PathLike[str] | None = None,
    *,
    stdout_to_stderr: bool = False,
) -> RunReport:
    """Run *command* as `run` does, with *settings*; its stdout may go to this process's stderr."""
    _check_command(command)
    named = audit_log or os.environ.get("WARMUP_AUDIT_LOG")
    with _signals_held() as mask, contextlib.ExitStack() as stack:
        own = temporary_folder("warmup-run-", ", or name an --audit-log")
        with contextlib.nullcontext() if named else own as folder:
            log = Path(named or f"{folder}/audit.jsonl").absolute()
            events = stack.enter_context(_AppendedEvents(log))
            path = os.environ.get("PYTHONPATH")  # an empty entry would be the working folder
            environment = {
                **os.environ,
                **settings,
                "WARMUP_AUDIT_LOG": str(log),
                "PYTHONPATH": f"{STARTUP}{os.pathsep}{path}" if path else str(STARTUP),
            }
            exit_code = _wait(_start(command, environment, mask, to_stderr=stdout_to_stderr))
        return _report(exit_code, events)


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise SettingsError("no command is given", "name one, such as -- python serve.py")


class _AppendedEvents(io.RawIOBase):
    """What is appended to *log* from now until the first read; stays that file if it is renamed."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._descriptor = -1
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._descriptor = os.open(log, flags, 0o644)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"the audit log {log} cannot be written and read: {problem_in(error)}",
                remedy_for(error, "name a writable file with --audit-log or in WARMUP_AUDIT_LOG"),
            ) from error
        status = os.fstat(self._descriptor)
        self._position, self._end = status.st_size, -1
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise SettingsError(
                f"the audit log {log} is no regular file",
                "name a file with --audit-log or in WARMUP_AUDIT_LOG, or none to keep no log",
            )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._end < 0:
            self._end = os.fstat(self._descriptor).st_size
            if self._end < self._position:  # truncated meanwhile, as some log rotations do
                self._position = 0
        size = min(len(buffer), self._end - self._position)
        content = os.pread(self._descriptor, size, self._position)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        super().close()


def _report(exit_code: int, events: _AppendedEvents) -> RunReport:
    ledger, arrived = Ledger(), ""
    try:
        # A signal that is forwarded ends the reading.
        read = io.BufferedReader(events)
        ledger.read(read, is_cut=lambda: not FORWARDED.isdisjoint(signal.sigpending()))
        counts = report_of(ledger)
    except Exception as error:  # noqa: BLE001  the exit code is worth more than the counts
        return RunReport(exit_code, report_of(Ledger()), first_line(error))
    while signal_found := signal.sigtimedwait(FORWARDED, 0):
        arrived = signal.Signals(signal_found.si_signo).name
    return RunReport(exit_code, counts, arrived)


@contextlib.contextmanager
def _signals_held() -> Iterator[set[int]]:
    """Block forwarded signals, so that none ends this process before it has cleaned up."""
    # Where SIGCHLD is ignored, as the parent may have left it, its default is restored meanwhile:
    # else the kernel drops the exit code of the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    is_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if is_ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield set(before)
    finally:
        if is_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    command: Sequence[str], environment: Mapping[str, str], mask: set[int], *, to_stderr: bool
) -> int:
    # Not Popen: posix_spawn sets the child's signal mask without Python code between fork and
    # exec, and the child inherits the descriptors that this process inherited.
    try:
        return os.posix_spawnp(
            *(command[0], list(command), environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)] if to_stderr else [],
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them
        )
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{command[0]} cannot be started: {problem_in(error)}",
            "name a program on PATH, or its file",
        ) from error


def _wait(pid: int) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _KILLED - code
        arrived = signal.sigtimedwait(_AWAITED, _POLL_S)
        # A positive code is the kernel's: a terminal, which has sent the signal to the whole group.
        if arrived and arrived.si_signo in FORWARDED and arrived.si_code <= 0:
            os.kill(pid, arrived.si_signo)
