"""The options of every command: how much it says on stderr, and where an error was raised."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
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
_OF_EVERY_COMMAND: Final[dict[str, tuple[Any, Any]]] = {
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

    @functools.wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        said = {name: given.pop(name) for name in _OF_EVERY_COMMAND}
        before = context.find_root().params  # `warmup -q build`
        quiet, debug = (bool(said[name] or before.get(name)) for name in ("quiet", "debug"))
        earlier = os.environ.get(DEBUG_VARIABLE, "")
        if debug:
            os.environ[DEBUG_VARIABLE] = "1"  # hooks print tracebacks too (inductor/firewall.py)
        with _verbosity(int(said["verbose"] or before.get("verbose") or 0), quiet=quiet):
            try:
                if compiles:
                    from warmup.inductor.host_facts import check_cache_folder

                    check_cache_folder()
                command(**given)
            except WarmupError:
                if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
                    traceback.print_exc()
                raise
            finally:
                if debug:
                    os.environ[DEBUG_VARIABLE] = earlier or "0"

    context = {"context": (typer.Context, inspect.Parameter.empty)}
    return adding(context | _OF_EVERY_COMMAND, to=command, by=run)


def adding(
    options: Mapping[str, tuple[Any, Any]],
    *,
    to: Callable[..., None],
    by: Callable[..., None],
    behind: str = "",
) -> Callable[..., None]:
    """Return *by* as the command *to* with more *options*, by name their annotation and default.

    They follow the option *behind*, by default all others.
    """
    plain, keyword = inspect.signature(to, eval_str=True), inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in plain.parameters.values()]
    names = [parameter.name for parameter in parameters]
    place = names.index(behind) + 1 if behind else len(names)
    parameters[place:place] = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    by.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect and typer
    by.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return by


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
