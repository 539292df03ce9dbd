"""A child process that is spoken to in lines of JSON, and may fault or hang.

What it is told arrives on its standard input. It answers on a file descriptor of its own, the last
of its arguments, so that whatever is printed meanwhile gets into its log and into no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

_READ_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 8192
_LOG_LINE_LENGTH: Final = 300
_WATCH_S: Final = 1.0

Message = dict[str, Any]


class LostError(Exception):
    """The child is gone, or is no use any more: why."""


class SilentError(LostError):
    """The child said nothing for too long, and may still run."""


@dataclass(frozen=True, slots=True)
class Caches:
    """The folder in which a process finds its caches, empty at first: inductor's and Triton's."""

    folder: Path

    @property
    def inductor(self) -> Path:
        """Where inductor's is."""
        return self.folder / "inductor"

    @property
    def triton(self) -> Path:
        """Where Triton's is."""
        return self.folder / "triton"

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that finds these caches and no table of its own."""
        plain = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
        return {
            **plain,
            "TORCHINDUCTOR_CACHE_DIR": str(self.inductor),
            "TRITON_CACHE_DIR": str(self.triton),
        }


class Child:
    """A process that runs *command* in a session of its own: Ctrl-C is its parent's to handle.

    What it prints goes to *log*, which can be read, and closed as soon as the child is started.
    Whoever starts a child kills it.
    """

    def __init__(
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
                env=dict(environment),
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
        """Its process ID."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; when the child has ended, `receive` will say so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, limit_s: float) -> Message:
        """Return the next line it answers.

        Raises:
            LostError: it ended; the message says how, with the last line it printed.
            SilentError: it said nothing for *limit_s* seconds.
        """
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise SilentError(f"said nothing for {limit_s:g} s{self._last_words()}")
            found = os.read(self._answers.fileno(), _READ_BYTES)
            if not found:
                raise LostError(self._how_it_ended())
            self._buffer += found
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def kill(self) -> None:
        """End it and what it started, at once; killing twice is fine."""
        if self._answers.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started may outlive it
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._selector.close()
        self._answers.close()
        os.close(self._log)

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}{self._last_words()}"
        return f"ended with exit code {code}{self._last_words()}"

    def _last_words(self) -> str:
        """Return the last line it printed, to be put after a reason."""
        size = os.fstat(self._log).st_size
        start = max(0, size - _TAIL_BYTES)
        # Its offset in the log is the child's too, which may still write.
        text = os.pread(self._log, size - start, start).decode(errors="replace")
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ({said[-1][:_LOG_LINE_LENGTH]})" if said else ""


def end_with_parent() -> None:
    """End this process soon after the one that started it is gone, whatever it is doing.

    For child programs, when they begin.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
