"""`Child`: a process that exchanges lines of JSON with its parent, and may crash or hang.

The parent's messages arrive on the child's standard input. The child answers on a file descriptor
whose number is its last argument, so that whatever it prints goes to its log and into no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, TypeVar

from warmup.core.errors import SettingsError

_ROOT: Final = str(Path(__file__).resolve().parents[2])
_READ_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 8192
_LOG_LINE_LENGTH: Final = 300
_WATCH_S: Final = 1.0
_SEND_S: Final = 60.0

Message = dict[str, Any]


class ChildError(Exception):
    """The child has ended or is not to be used again; the text says why."""


class ChildTimeoutError(ChildError):
    """The child sent no answer within the limit, and may still run."""


class Child:
    """A process that runs *command* in its own session, so that Ctrl-C reaches the parent only.

    It has this process's environment with *changes* and without any WARMUP_ variable, and imports
    this warmup. Its output goes to *log*, a readable file that may be closed once the child is
    started, else to a temporary one. The caller that starts a child must `kill` it.
    """

    def __init__(
        self,
        command: Sequence[str],
        changes: Mapping[str, str] = MappingProxyType({}),
        log: IO[bytes] | None = None,
    ) -> None:
        plain = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
        path = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
        with contextlib.ExitStack() as stack:
            log = log or stack.enter_context(tempfile.TemporaryFile())
            self._start(command, {**plain, "PYTHONPATH": path, **changes}, log)

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> None:
        ours, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603  the caller's own program
                [*command, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._answers = os.fdopen(ours, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._buffer = b""
        self._log = os.dup(log.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any], limit_s: float = _SEND_S) -> None:
        """Send *message* as a line; of a child that has ended only `receive` reports it.

        A pipe that nobody reads fills up: a child that does not take it in *limit_s* is ended.
        """
        assert self._process.stdin is not None
        timer = threading.Timer(limit_s, self.end)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        timer.cancel()

    def receive(self, limit_s: float) -> Message:
        """Return the child's next answer.

        A ChildTimeoutError: none came for *limit_s* seconds. A ChildError says how the child ended,
        with the last line it printed.
        """
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise ChildTimeoutError(f"said nothing for {limit_s:g} s{self._last_line()}")
            chunk = os.read(self._answers.fileno(), _READ_BYTES)
            if not chunk:
                raise ChildError(self._exit_reason())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def end(self) -> None:
        """End the child and every process that it started; `receive` then says so.

        Another thread may wait in `receive` or `send`. The caller still has to `kill` the child.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the child's own processes may outlive it

    def kill(self) -> None:
        """Kill the child and every process that it started; killing twice is fine."""
        if self._answers.closed:
            return
        self.end()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._selector.close()
        self._answers.close()
        os.close(self._log)

    def _exit_reason(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}{self._last_line()}"
        return f"ended with exit code {code}{self._last_line()}"

    def _last_line(self) -> str:
        size = os.fstat(self._log).st_size
        start = max(0, size - _TAIL_BYTES)
        # pread, since the child shares this descriptor's offset and may still write.
        text = os.pread(self._log, size - start, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ({lines[-1][:_LOG_LINE_LENGTH]})" if lines else ""


def end_with_parent() -> None:
    """Make this process kill itself soon after its parent ends, whatever it is doing then."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def answering() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield what sends an answer to the parent, from any thread; this process ends with it."""
    end_with_parent()
    lock, pipe = threading.Lock(), int(sys.argv[-1])
    os.set_inheritable(pipe, False)  # noqa: FBT003  a process started here would keep it open
    with os.fdopen(pipe, "wb") as answers:

        def send(message: Mapping[str, Any]) -> None:
            line = json.dumps(message).encode() + b"\n"
            with lock:
                answers.write(line)
                answers.flush()

        yield send


# `RecordingOrder`: what `warmup build -- COMMAND` asks of each Python process of the command.

RECORDING_VARIABLE: Final = "WARMUP_RECORDING"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOrder:
    """The table to complete, how to measure, and the folder that the processes share meanwhile.

    ``session`` is in inductor's cache keys, so that no graph of an earlier run answers in place of
    a compile. With ``after`` the processes measure nothing: their misses are tuned when the command
    has ended. ``options`` are the arguments of `PolicyOptions`; the other fields are those of
    `warmup.tuning.build.BuildOptions`.
    """

    out: str
    folder: str
    session: str
    after: bool
    device: str
    options: dict[str, Any]
    search: str
    wait_for_quiet: float | None = None

    @property
    def origin(self) -> Path:
        """The file of an empty table with the runtime and the policy of the processes."""
        return Path(self.folder) / "origin.json"

    @property
    def log(self) -> Path:
        """The file that the processes append events to where the user names none."""
        return Path(self.folder) / "audit.jsonl"

    @property
    def regions(self) -> Path:
        """The file of region questions, which are measured when the program has ended."""
        return Path(self.folder) / "regions.jsonl"

    @property
    def turn(self) -> Path:
        """The file whose lock is the right to measure."""
        return Path(self.folder) / "turn"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def order_in_environment() -> RecordingOrder | None:
    """Return the order that this process has, None if nobody records it, or a SettingsError."""
    text = os.environ.get(RECORDING_VARIABLE)
    if not text:
        return None
    try:
        return RecordingOrder(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{RECORDING_VARIABLE} is no order of `warmup build -- COMMAND`: {error}",
            "unset it: only that command sets it",
        ) from error


# Interleaving: in every round each item has its turn, and each round begins with another item.

_Participant = TypeVar("_Participant")


def in_turn(items: Sequence[_Participant], number: int) -> list[_Participant]:
    """Return *items* in the order of round *number*, counted from 0: one further on each round.

    A drift of the machine then meets all items alike, and none is always first.
    """
    first = number % len(items) if items else 0
    return [*items[first:], *items[:first]]
