"""`Notices`: says on stderr, once in a process for each cause, that a table is of no use.

A notice is printed whatever logging the program has, and is no entry of a log, so it is never
printed twice. It is not a `warnings` warning either, which ``python -W error`` would raise inside a
compile.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from warmup.core.counted import counted
from warmup.core.errors import (
    ForeignGraphError,
    MissError,
    UncoveredError,
    WeightChangedError,
    warmup_error_in,
)
from warmup.core.events import Event, EventName, differs_of, logger
from warmup.core.miss_reasons import MissReason, advice_for
from warmup.core.notices import print_notice
from warmup.serving.report import what_was_compiled

_SHOWN_KEY: Final = 60
_SHOWN_FRAMES: Final = 3  # the audit lists all


class NoticeCause(StrEnum):
    """Why a table is of no use to a process, or of less use than it could be."""

    LATE = "late"
    GRADIENTS = "gradients"
    UNASKED = "unasked"
    MISS = "miss"
    MISMATCH = "mismatch"
    DYNAMIC = "dynamic"
    CHANGED = "changed"


_given: set[NoticeCause] = set()
_lock = threading.Lock()


class Notices:
    """The notices about one installed table; a sink, for the first miss.

    *bypassed* gets the cause and the text of each notice that is no miss, also where *is_quiet*
    keeps it from stderr.
    """

    def __init__(
        self,
        table: str,
        *,
        is_strict: bool,
        is_quiet: bool,
        bypassed: Callable[[NoticeCause, str], object],
    ) -> None:
        self._table = table
        self._is_strict = is_strict
        self._is_quiet = is_quiet
        self._bypassed = bypassed
        self._seen: set[NoticeCause] = set()
        if not is_quiet:
            _repeat_fatal_error_at_exit()

    def __call__(self, event: Event) -> None:
        """Print the first miss of the process, of a dynamic dim, and the first changed weight."""
        if event.name is EventName.CHANGED:
            again = "refused (strict)" if self._is_strict else "compiled again with the new values"
            self._print(
                "the weight {weight} was changed after {frame} had frozen it".format_map(
                    event.fields
                )
                + f": the graph is {again}; further changes are only counted",
                NoticeCause.CHANGED,
            )
        if event.name is not EventName.MISSED:
            return
        reason = MissReason(str(event.fields["reason"]))
        is_dynamic = reason is MissReason.DYNAMIC_DIM
        key = str(event.fields["key"]).partition(" a=")[0]  # op, sizes and dtype of a matmul
        shown = key if len(key) <= _SHOWN_KEY else f"{key[:_SHOWN_KEY]}..."
        then = "the compile fails (strict)" if self._is_strict else "inductor's default is compiled"
        text = (
            f"miss: no row of {self._table} answers {shown} ({reason}): {then}; "
            f"{advice_for(reason, differs_of(event))}; further misses are only counted"
        )
        self._print(text, NoticeCause.MISS, *([NoticeCause.DYNAMIC] if is_dynamic else []))

    def late(self, functions: int, *, is_compiling: bool) -> None:
        """Say that *functions* were compiled before the install, or that a compile was going on."""
        before = [f"compiled functions: {functions}"] if functions else []
        before += ["a compile in another thread"] if is_compiling else []
        if before:
            self._bypass(
                NoticeCause.LATE,
                f"{self._table} was installed late, after {' and '.join(before)}; these do not use "
                "it: install before the first call of a compiled model",
            )

    def mismatch(self, refused: str) -> None:
        """Say why nothing of the table is applied in this process."""
        logger.warning("not installed: %s", refused)
        self._print(
            f"nothing of the table is applied, and this process goes on without it: {refused}",
            NoticeCause.MISMATCH,
        )

    def gradients_on(self) -> None:
        """Say that a graph was compiled with gradients although the table is for inference."""
        self._bypass(
            NoticeCause.GRADIENTS,
            f"a graph was compiled with gradients on, so torch froze no weights and asked "
            f"{self._table} nothing about its linears: call the compiled function under "
            "torch.no_grad() or torch.inference_mode(); inside of it that comes too late",
        )

    def unasked(self, compiles: int, uncompiled: Iterable[str]) -> None:
        """Say what was seen of a process that asked nothing, unless the reason was said before."""
        if not self._seen:
            frames = [*uncompiled]
            rest = len(frames) - _SHOWN_FRAMES
            more = [f"and {counted(rest, 'more uncompiled frame')}"] if rest > 0 else []
            said = (*frames[:_SHOWN_FRAMES], *more, what_was_compiled(compiles))
            self._bypass(
                NoticeCause.UNASKED,
                f"{self._table} was not used: process {os.getpid()} looked nothing up; "
                f"{'; '.join(said)}",
            )

    def _bypass(self, cause: NoticeCause, text: str) -> None:
        with _lock:
            is_new = cause not in self._seen
            self._seen.add(cause)
        if is_new:
            self._bypassed(cause, text)
            self._print(text, cause)

    def _print(self, text: str, *causes: NoticeCause) -> None:
        if self._is_quiet:
            return
        with _lock:
            is_new = not _given.issuperset(causes)
            _given.update(causes)
        if is_new:
            print_notice(text)


_is_repeating = False


def _repeat_fatal_error_at_exit() -> None:
    """Print, as the last line of a process that a refused decision ended, which one that was.

    torch wraps the error, and prints some ninety lines with it.
    """
    global _is_repeating  # noqa: PLW0603  exit handlers belong to the process
    if not _is_repeating:
        _is_repeating = True
        atexit.register(_repeat_fatal_error)


def _repeat_fatal_error() -> None:
    last = getattr(sys, "last_value", None)  # set by Python when it prints an uncaught exception
    own = warmup_error_in(last) if isinstance(last, BaseException) else None
    if isinstance(own, MissError):
        print_notice(f"the program ended at a miss: {own}")
    elif isinstance(own, UncoveredError):
        print_notice(f"the program ended at an uncovered measurement: {own}")
    elif isinstance(own, ForeignGraphError):
        print_notice(f"the program ended at a graph of another table: {own}")
    elif isinstance(own, WeightChangedError):
        print_notice(f"the program ended at a changed weight: {own}")
