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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.core.buckets import ShapePolicy
from warmup.core.errors import SettingsError, WarmupError
from warmup.serving.audit import FAILURES

ON_MISS_HELP: Final = (
    "At a miss (no row answers): fallback compiles inductor's default choice, strict is an error."
)

TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="The table file.")]
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
Bundle = Annotated[
    Path | None,
    typer.Option(
        help="A bundle: compiled kernels that `warmup build --bundle` wrote beside the table. It "
        "is code; use bundles from sources you trust."
    ),
]
FailOn = Annotated[
    str | None, typer.Option(help=f"Exit with code 1 on any of {', '.join(FAILURES)}.")
]
Freezing = Annotated[
    bool | None,
    typer.Option(
        "--freezing/--no-freezing",
        help="Freeze weights as a CPU table's build did: a graph is compiled again after one of "
        "its weights changed. Default WARMUP_FREEZING, else as the program has it.",
    ),
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


# The model, its buckets and its inputs: one group of five commands.


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What ``--model`` and the options beside it say, in the text form of the Python API."""

    model: str | None
    seqlens: str | None
    dims: tuple[str, ...] | None
    inputs: tuple[str, ...]
    dtype: str | None
    device: str

    def words(self) -> dict[str, Any]:
        """Return all but the model by name, for a function that takes them so."""
        return {
            "seqlens": self.seqlens,
            "dims": self.dims,
            "inputs": self.inputs,
            "dtype": self.dtype,
            "device": self.device,
        }


_MODEL_HELP: Final = (
    "FILE.py, FILE.py:NAME, pkg.mod:NAME, hf:FOLDER or hf-random:FOLDER; arguments behind it: "
    "'net.py:Net{\"layers\": 2}'."
)
_SIZES_HELP: Final = (
    'Sizes of seqlen: 560,1024 or 4..512 or 64..512:64; of any dims: "batch=1,8;seqlen=16".'
)
_Sizes = Annotated[
    list[str] | None, typer.Option("--seqlens", "--dims", metavar="SIZES", help=_SIZES_HELP)
]
_Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="INPUT",
        help='Where example_inputs does not say it, an input: "x=[seqlen,3420]:bf16". Repeatable.',
    ),
]
_Dtype = Annotated[
    str | None,
    # The name is given, since typer 0.27 makes ``--DTYPE`` of a metavar that is the name.
    typer.Option("--dtype", metavar="DTYPE", help="Cast model and inputs: bf16, f16, f32 or f64."),
]
_Devices = Annotated[
    str,
    typer.Option(
        "--device",
        "--devices",
        metavar="DEVICE",
        show_default=False,
        help="auto, cpu, cuda:1; many: all or cuda:0,cuda:1.",
    ),
]


def with_model_options(
    command: Callable[..., None], *, is_required: bool, has_devices: bool
) -> Callable[..., None]:
    """Return *command* with these options, if it has a parameter ``model``, which gets them all.

    With *has_devices* ``--device`` may name several.
    """
    if "model" not in inspect.signature(command).parameters:
        return command

    @functools.wraps(command)
    def run(
        *,
        model: str | None,
        sizes: Sequence[str] | None,
        inputs: Sequence[str] | None,
        dtype: str | None,
        device: str,
        **given: Any,
    ) -> None:
        plain = [text for text in sizes or () if "=" not in text]
        if len(plain) > 1:
            raise typer.BadParameter(f"--seqlens {plain[1]}: it was given before, as {plain[0]}")
        dims = tuple(text for text in sizes or () if "=" in text) or None
        seqlens = plain[0] if plain else None
        command(
            model=ModelOptions(model, seqlens, dims, tuple(inputs or ()), dtype, device), **given
        )

    named = typer.Option("--model", metavar="MODEL", help=_MODEL_HELP)
    options: dict[str, tuple[Any, Any]] = {
        "model": (
            (Annotated[str, named], inspect.Parameter.empty)
            if is_required
            else (Annotated[str | None, named], None)
        ),
        "sizes": (_Sizes, None),
        "inputs": (_Inputs, None),
        "dtype": (_Dtype, None),
        "device": (_Devices if has_devices else DeviceOption, "auto"),
    }
    return adding(options, to=command, by=run, instead_of="model")


# The options of every command: how much it says on stderr.

DEBUG_VARIABLE: Final = "WARMUP_DEBUG"
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="On stderr only errors and failures.")]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Print details and log to stderr; -vv logs all.",
    ),
]
_OF_EVERY_COMMAND: Final[dict[str, tuple[Any, Any]]] = {
    "quiet": (Quiet, False),
    "verbose": (Verbose, 0),
}


def is_quiet() -> bool:
    """Return whether the command that runs in this thread has ``--quiet``."""
    return _is_quiet.get()


def is_verbose() -> bool:
    """Return whether -v was given: details are printed that no verdict needs."""
    return logging.getLogger("warmup").isEnabledFor(logging.INFO)


def with_common_options(command: Callable[..., None], *, compiles: bool) -> Callable[..., None]:
    """Return *command* with the options of every command.

    A command that *compiles* ends with an error where inductor's cache folder cannot be made.
    """

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: int, **given: Any) -> None:
        with _verbosity(verbose, quiet=quiet):
            try:
                if compiles:
                    from warmup.inductor.host_facts import check_cache_folder

                    check_cache_folder()
                command(**given)
            except WarmupError:
                if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
                    traceback.print_exc()
                raise

    return adding(_OF_EVERY_COMMAND, to=command, by=run)


def adding(
    options: Mapping[str, tuple[Any, Any]],
    *,
    to: Callable[..., None],
    by: Callable[..., None],
    instead_of: str = "",
) -> Callable[..., None]:
    """Return *by* as the command *to* with more *options*, by name their annotation and default.

    They stand in the place of the parameter *instead_of*, by default behind all.
    """
    plain, keyword = inspect.signature(to, eval_str=True), inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in plain.parameters.values()]
    names = [parameter.name for parameter in parameters]
    place = names.index(instead_of) if instead_of else len(names)
    parameters[place : place + bool(instead_of)] = [
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
