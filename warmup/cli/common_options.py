"""The options of every command: how much it says on stderr, and where an error was raised."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any, Final

import typer

from warmup.core.errors import WarmupError

DEBUG_VARIABLE: Final = "WARMUP_DEBUG"
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors and failures.")
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Log what happens to stderr; -vv logs every detail.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help=f"Print the traceback of an error; so does {DEBUG_VARIABLE}=1."),
]
_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "quiet": (Quiet, False),
    "verbose": (Verbose, 0),
    "debug": (Debug, False),
}


def is_quiet() -> bool:
    """Return whether the command that runs in this thread was told to be quiet."""
    return _is_quiet.get()


def is_verbose() -> bool:
    """Return whether -v was given: details are printed that no verdict needs."""
    return logging.getLogger("warmup").isEnabledFor(logging.INFO)


def with_common_options(command: Callable[..., None], *, compiles: bool) -> Callable[..., None]:
    """Return *command* with the options of every command, before or after its name.

    A command that *compiles* ends with an error where inductor's cache folder cannot be made.
    """
    plain = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        said = {name: given.pop(name) for name in _OPTIONS}
        before = context.find_root().params  # `warmup -q build`
        quiet, debug = (bool(said[name] or before.get(name)) for name in ("quiet", "debug"))
        with _verbosity(int(said["verbose"] or before.get("verbose") or 0), quiet=quiet):
            try:
                if compiles:
                    from warmup.inductor.host_facts import check_cache_folder

                    check_cache_folder()
                command(**given)
            except WarmupError:
                if debug or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
                    traceback.print_exc()
                raise

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [parameter.replace(kind=keyword) for parameter in plain.parameters.values()]
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    signature = plain.replace(parameters=[context, *own, *added])
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect and typer
    annotations = {name: annotation for name, (annotation, _) in _OPTIONS.items()}
    run.__annotations__ = {
        **command.__annotations__,
        "context": typer.Context,
        **annotations,
    }
    return run


@contextlib.contextmanager
def _verbosity(level: int, *, quiet: bool) -> Iterator[None]:
    """Log to stderr, INFO from *level* 1 and DEBUG from 2 on, while the context is open."""
    token = _is_quiet.set(quiet)
    log, handler = logging.getLogger("warmup"), logging.StreamHandler(sys.stderr)
    before = log.level
    if level:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG if level > 1 else logging.INFO)
    try:
        yield
    finally:
        _is_quiet.reset(token)
        log.removeHandler(handler)
        log.setLevel(before)
