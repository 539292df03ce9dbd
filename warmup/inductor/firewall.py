"""`Firewall`: keeps an exception of a hook from the compile that the hook serves.

A hook stands in the place of a function of torch and calls it. Where the hook itself raises, the
function runs as it would without us, and the exception is a miss with the reason ``internal``. An
exception that torch's own function raised passes unchanged, and so do refusals that the user wants:
those of strict serving, and in a build what ends the build, such as a full disk.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from warmup.core.errors import (
    AdapterError,
    ForeignGraphError,
    MissError,
    ProblemError,
    UncoveredError,
    WarmupError,
    WeightChangedError,
)
from warmup.core.events import logger
from warmup.core.flags import read_flag
from warmup.core.miss_reasons import MissReason
from warmup.keys.question import Answers

_T = TypeVar("_T")
_REFUSALS: Final = (MissError, UncoveredError, ForeignGraphError, WeightChangedError)
_MAX_SAID: Final = 200
_PACKAGE: Final = Path(__file__).parents[1]


class _Calls(threading.local):
    """The calls of one hook that are open in this thread, the innermost last."""

    def __init__(self) -> None:
        self.open: list[_Call] = []


class _Call:
    """What torch's own function did during a call of a hook."""

    raised: BaseException | None = None
    returned: tuple[Any] | None = None


class Firewall:
    """Reports what hooks raise to ``answers``, in every thread; without answers to the log alone.

    ``attached`` is the firewall of the table that is attached, for hooks that others add to its.
    """

    attached: ClassVar[Firewall | None] = None

    def __init__(self, answers: Answers | None = None) -> None:
        self.answers = answers

    @classmethod
    def current(cls) -> Firewall:
        """Return that of the attached table; without a table, a firewall that only logs."""
        return cls.attached or cls()

    def guard(
        self,
        place: str,
        function: Callable[..., Any],
        make: Callable[[Any], Any],
        plain: Callable[[Any], Any] | None = None,
    ) -> Callable[..., Any]:
        """Return ``make(function)``, a hook, such that only what *function* raises leaves it.

        *place* names the hook in reports. Where the hook raises after *function* returned, the call
        returns what *function* returned first: of further calls the hook may have used the result,
        such as a kernel whose code was generated to be timed. Else ``plain(function)``, by default
        *function*, is called with the same arguments.
        """
        calls = _Calls()

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            call = calls.open[-1] if calls.open else _Call()  # else in a thread of the hook's own
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                call.raised = error
                raise
            call.returned = call.returned or (result,)
            return result

        hook, instead = make(watched), function if plain is None else plain(function)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            call = _Call()
            calls.open.append(call)
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                if error is call.raised or self._passes(error):
                    raise
                self._report(place, error)
            finally:
                calls.open.pop()
            return instead(*args, **kwargs) if call.returned is None else call.returned[0]

        return guarded

    def attempt(self, place: str, call: Callable[[], _T], instead: Callable[[], _T]) -> _T:
        """Return what *call* returns, or *instead* where it raises; *place* names it in reports."""
        try:
            return call()
        except Exception as error:
            if self._passes(error):
                raise
            self._report(place, error)
        return instead()

    def _passes(self, error: Exception) -> bool:
        if isinstance(error, _REFUSALS):
            return True
        is_own = isinstance(error, WarmupError) and not isinstance(
            error, AdapterError | ProblemError
        )
        return is_own and self.answers is not None and self.answers.tunes

    def _report(self, place: str, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}".splitlines()[0][:_MAX_SAID]
        problem = f"hook {place}: {said} ({_line_of(error)})"
        try:
            if read_flag(None, "WARMUP_DEBUG"):
                traceback.print_exception(error)
            if self.answers is None:
                logger.warning("%s; torch's own code ran as without warmup", problem)
            else:
                self.answers.miss(problem, MissReason.INTERNAL, "as without warmup")
        except _REFUSALS:
            raise
        except Exception as second:  # noqa: BLE001  a log that is full must not end a compile
            logger.warning("%s; not counted: %s", problem, second)


def _line_of(error: BaseException) -> str:
    """Return the file and the line of ours that raised *error*, or that called what raised it."""
    lines = [
        f"{Path(frame.filename).relative_to(_PACKAGE.parent)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_PACKAGE) and frame.filename != __file__
    ]
    return lines[-1] if lines else "outside of warmup"
