"""`Patches`: replaces attributes of torch's modules and classes, and restores them.

Class attributes affect every thread, even threads that compiled before. Inductor's choices handler
and, from torch 2.12 on, its config overrides are per thread.
"""

from __future__ import annotations

import functools
import inspect
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from warmup.core.errors import (
    AdapterError,
    ForeignGraphError,
    InductorChangedError,
    MissError,
    MissReason,
    ProblemError,
    UncoveredError,
    WarmupError,
    WeightChangedError,
)
from warmup.core.events import Missed, logger
from warmup.core.rows import read_flag
from warmup.core.text import first_line
from warmup.inductor.versions import Version
from warmup.keys.question import Answers

_T = TypeVar("_T")
Function = Callable[..., Any]
_REFUSALS: Final = (MissError, UncoveredError, ForeignGraphError, WeightChangedError)
_PACKAGE: Final = Path(__file__).parents[1]


class _Calls(threading.local):
    def __init__(self) -> None:
        self.open: list[_Call] = []


class _Call:
    raised: BaseException | None = None
    returned: tuple[Any] | None = None


class Firewall:
    """Reports what hooks raise to ``answers``, in every thread; without answers to the log alone.

    Where answers measure, errors of ours such as a full disk end the compile: a build reports them.
    ``attached`` is the firewall of the table that is attached, for hooks that others add to its.
    """

    attached: ClassVar[Firewall | None] = None

    def __init__(self, answers: Answers | None = None) -> None:
        self.answers = answers
        self._measures = answers is not None and answers.settings.measures

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

        *place* names it in reports. Where the hook raises after *function* returned, the call
        returns what *function* returned first: of further calls the hook may have used the result,
        such as a kernel that was generated to be timed. Else ``plain(function)``, by default
        *function*, is called.
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
        return is_own and self._measures

    def _report(self, place: str, error: Exception) -> None:
        problem = f"hook {place}: {first_line(error)} ({_line_of(error)})"
        try:
            if read_flag(None, "WARMUP_DEBUG"):
                traceback.print_exception(error)
            if self.answers is None:
                logger.warning("%s; torch's own code ran as without warmup", problem)
            else:
                self.answers.emit(Missed(problem, MissReason.INTERNAL, "as without warmup"))
        except _REFUSALS:
            raise
        except Exception as second:  # noqa: BLE001  a log that is full must not end a compile
            logger.warning("%s; not counted: %s", problem, second)


def _line_of(error: BaseException) -> str:
    lines = [
        f"{Path(frame.filename).relative_to(_PACKAGE.parent)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_PACKAGE) and frame.filename != __file__
    ]
    return lines[-1] if lines else "outside of warmup"


@dataclass(eq=False, slots=True)
class _Layer:
    """A replacement of an attribute, and what is below it: another table's, or torch's own."""

    owner: Any
    name: str
    below: Any  # as it stands in the owner's namespace, perhaps a classmethod
    function: Any  # the same, as it is called
    call_below: Any = None  # calls ``function``; None where the replacement has it for itself
    replacement: Any = None
    has_ended: bool = False


_changing = threading.Lock()  # another table may be installed while a compile ends
_layers: list[_Layer] = []  # all that stand somewhere


class Patches:
    """A stack of replaced attributes; `restore` puts them back, last first, as ``with`` does.

    With a *firewall* no exception of a replacement reaches the function's caller: hooks in a
    user's compile have one. Without it a replacement may raise, as those of a tool that compiles.
    """

    def __init__(self, firewall: Firewall | None = None) -> None:
        self.firewall = firewall
        self._undo: list[Callable[[], None]] = []
        self._deactivate: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._users = 0
        self._is_restored = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def wrap(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        plain: Callable[[Any], Any] | None = None,
    ) -> None:
        """Replace attribute *name* of *owner* by ``make(original)``; classmethods stay so.

        Where the replacement raises, ``plain(original)`` is called, by default the original itself.
        """

        def replaced(layer: _Layer) -> Any:
            function = layer.function
            if self.firewall is None or not callable(function):
                return _named_as(function, make(function))

            def call_below(*args: Any, **kwargs: Any) -> Any:
                return layer.function(*args, **kwargs)

            layer.call_below = _named_as(function, call_below)
            place = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
            guarded = self.firewall.guard(place, layer.call_below, make, plain)
            return _named_as(function, guarded)

        with _changing:
            if (raw := vars(owner).get(name)) is None:
                raise InductorChangedError(f"{owner.__name__}.{name} is gone")
            is_bound = isinstance(raw, (classmethod, staticmethod))
            layer = _Layer(owner, name, raw, raw.__func__ if is_bound else raw)
            replacement = replaced(layer)
            layer.replacement = type(raw)(replacement) if is_bound else replacement
            setattr(owner, name, layer.replacement)
            _layers.append(layer)

        def undo() -> None:
            with _changing:
                layer.has_ended = True
                _remove_ended()

        self._undo.append(undo)

    def hook(
        self,
        owner: Any,
        name: str,
        hook: Callable[..., Any],
        plain: Callable[..., Any] | None = None,
    ) -> None:
        """Let *hook* answer the calls of ``owner.name``, with the original as the first argument.

        Where it raises, *plain* is called likewise, by default the original itself.
        """

        def made(function: Function) -> Callable[[Any], Any]:
            def make(original: Any) -> Function:
                return lambda *args, **kwargs: function(original, *args, **kwargs)

            make.__qualname__ = function.__qualname__  # by which tests name the hook
            return make

        self.wrap(owner, name, made(hook), None if plain is None else made(plain))

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call *undo* on `restore`, before attributes are put back."""
        self._deactivate.append(undo)

    def keep_during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return *function*, during whose calls no attribute is put back."""

        # A compile under way may hold what only a replacement understands, such as a deferred list
        # of candidates. The replacements are inactive by then; the last call that began before
        # `restore` puts all back.
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                is_user = not self._is_restored
                self._users += is_user
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self._users -= is_user
                if is_user:
                    self._put_back()

        return call

    def restore(self) -> None:
        """Deactivate all replacements, and put every attribute back; restoring twice is fine."""
        while self._deactivate:
            self._deactivate.pop()()
        self._is_restored = True
        self._put_back()

    def _put_back(self) -> None:
        with self._lock:
            if self._is_restored and not self._users:
                while self._undo:
                    self._undo.pop()()


class Hooks:
    """Hooks that are ``_active`` until `Patches` calls `_deactivate`, given to `on_restore`."""

    _active = True

    def _deactivate(self) -> None:
        self._active = False


class KindHooks(Hooks):
    """Hooks into inductor for the decisions of one row kind; `Kind.hooks` names the class.

    Where inductor is about to choose among several candidates, a hook describes the problem, calls
    `Answers.find`, and ends in exactly one of these calls:

    - `Answers.emit` of a `Hit`, once the winner of the row is what is compiled.
    - `Answers.measure` of a question when there is no winner and `Settings.measures`: the winner
      returned, or the library default for None, is compiled.
    - `Answers.emit` of a `Missed` otherwise, and the library default is compiled. A problem that no
      key can spell is missed as ``not_described``; its text begins with the kind's name.
    """

    def __init__(self, version: Version, answers: Answers) -> None:
        self._version, self._answers, self._settings = version, answers, answers.settings

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored.

        A hook that somebody else wrapped in the meantime stays, and only calls what it replaced.
        """
        raise NotImplementedError


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls *function* without its wrappers, such as hooks and caches."""
    return functools.partial(inspect.unwrap(function))


def _remove_ended() -> None:
    """Remove the layers that have ended: from the owner, or from below the layer above."""
    # Where other code wrapped the attribute, its wrapper stays, and ours is inactive below it.
    while ended := [layer for layer in _layers if layer.has_ended and _removes(layer)]:
        _layers[:] = [layer for layer in _layers if layer not in ended]


def _removes(layer: _Layer) -> bool:
    if vars(layer.owner).get(layer.name) is layer.replacement:
        setattr(layer.owner, layer.name, layer.below)
        return True
    for above in _layers:
        if above.below is layer.replacement and above.call_below is not None:
            above.below, above.function = layer.below, layer.function
            above.call_below.__wrapped__ = layer.function
            getattr(above.replacement, "__func__", above.replacement).__wrapped__ = layer.function
            return True
    return False


def _named_as(original: Any, replacement: Any) -> Any:
    if callable(original) and callable(replacement):
        functools.update_wrapper(replacement, original)
    return replacement
