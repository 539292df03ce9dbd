"""Options and arguments that several commands share: one alias and one help text for each.

A command that needs another default or another type states only that.
"""

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
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.core.buckets import ShapePolicy
from warmup.core.errors import SettingsError, WarmupError
from warmup.core.method import L2, Launch
from warmup.serving.audit import FAILURES

MODEL: Final[Any] = typer.Option(
    "--model",
    metavar="MODEL",
    help="The model to load: FILE.py, FILE.py:NAME, package.module:NAME or, of transformers, "
    "hf:FOLDER[:CLASS]. FILE.py alone: its 'model', its only class, or the class that its "
    "example_inputs fits.",
)
LAUNCH_HELP: Final = "How timed calls are launched: eager (one by one) or, on a GPU, cudagraph."
L2_HELP: Final = "What timed calls find in the L2 cache: cold (none of their operands) or warm."
ON_MISS_HELP: Final = (
    "At a miss (no row answers): fallback compiles inductor's default choice, strict is an error."
)
FAIL_ON: Final[Any] = typer.Option(help=f"Exit with code 1 on any of {', '.join(FAILURES)}.")
ROUNDS_HELP: Final = "Rounds of timing; each round times every call once."

TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="The table file.")]
Model = Annotated[str, MODEL]
OptionalModel = Annotated[str | None, MODEL]
Seqlens = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="Bucket sizes of the dim seqlen: 560,1024 or 4..8192 (doubling) or 128..4096:128 "
        "(steps of 128).",
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dims",
        metavar="DIMS",
        help='Bucket sizes of named dims: "batch=1,8;seqlen=4..8192". Repeatable.',
    ),
]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="INPUT",
        help='Shape and dtype of one input: "hidden_states=[seqlen,3420]:bf16". Repeatable. '
        "Without it, example_inputs of the model's file makes the inputs, or they are inferred.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Cast floating parameters and inputs to this dtype: bf16, f16, f32 or f64."),
]
OperandDtype = Annotated[str, typer.Option(help="Dtype of the operands: bf16, f16 or f32.")]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        help="Tune on several GPUs of one kind at once: all, or cuda:0,cuda:1. A problem whose "
        "worker dies or hangs is tuned on another."
    ),
]
WaitForQuiet = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Seconds in all to wait while other processes keep the machine busy; default 30.",
    ),
]
RowsFrom = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="TABLE",
        help="A table whose rows are taken where they fit, instead of being measured; the rest is "
        "tuned. Repeatable.",
    ),
]
ProblemLimit = Annotated[
    str,
    typer.Option(
        help="With --devices or --cluster: time after which a problem is given to another device."
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="With --problems: tune the I-th of N disjoint shares; `merge` joins the tables.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="Tune --problems on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT. "
        "--devices is then all, a kind of GPU or cpu, and --budget is for all problems."
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="auto (the first GPU, else the CPU), cpu, cuda or cuda:N.")
]
PolicyOption = Annotated[
    ShapePolicy,
    typer.Option(
        help="Sizes that a bucket serves: its own (exact or pad), or all down to the next "
        "smaller bucket (range)."
    ),
]
TimedLaunch = Annotated[Launch, typer.Option(help=LAUNCH_HELP)]
TimedL2 = Annotated[L2, typer.Option(help=L2_HELP)]
BenchRounds = Annotated[int, typer.Option(min=1, help=ROUNDS_HELP)]
Bundle = Annotated[
    Path | None,
    typer.Option(
        help="A bundle: compiled kernels that `warmup build --bundle` wrote beside the table. It "
        "is code; use bundles from sources you trust."
    ),
]
ResultFolder = Annotated[
    Path | None,
    typer.Option(help="Folder for the report as JSON, charts and what else is made; default none."),
]
AllowMismatch = Annotated[
    bool,
    typer.Option(
        "--allow-mismatch",
        help="Install a table for another device or runtime all the same: every lookup is a miss.",
    ),
]
FailOn = Annotated[str | None, FAIL_ON]
Freezing = Annotated[
    bool | None,
    typer.Option(
        "--freezing/--no-freezing",
        help="Freeze weights as a CPU table's build did: a graph is compiled again after one of "
        "its weights changed. Default WARMUP_FREEZING, else as the program has it.",
    ),
]
PeaksOption = Annotated[
    Path | None,
    typer.Option(help="Take the measured peaks of this table, for the same device."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def parse_failures(words: str | None) -> list[str]:
    """Return the words of ``--fail-on``, none for None.

    Raises:
        SettingsError: a word is not in `FAILURES`.
    """
    wanted = [word.strip() for word in words.split(",")] if words else []
    if unknown := [word for word in wanted if word not in FAILURES]:
        raise SettingsError(
            f"--fail-on: {', '.join(unknown)} is not something to fail on",
            f"use any of {','.join(FAILURES)}",
        )
    return wanted


# The options of every command: how much it says on stderr, and where an error was raised.

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
