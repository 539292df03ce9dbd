"""Options and arguments that several commands share: one alias and one help text for each."""

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
        help="A bundle of compiled kernels; default the one that `warmup build` wrote beside the "
        "table; 0 for none. It is code; use bundles from sources you trust."
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
        names = ("seqlens", "dims", "inputs", "dtype", "device")
        return {name: getattr(self, name) for name in names}


_Model = typer.Option(
    "--model",
    metavar="MODEL",
    help="FILE.py, FILE.py:NAME, pkg.mod:NAME, hf:FOLDER or hf-random:FOLDER; arguments behind "
    "it: 'net.py:Net{\"layers\": 2}'.",
)
_Sizes = typer.Option(
    "--seqlens",
    "--dims",
    metavar="SIZES",
    help='Sizes of seqlen: 560,1024 or 4..512 or 64..512:64; of any dims: "batch=1,8;seqlen=16".',
)
_Inputs = typer.Option(
    "--input",
    metavar="INPUT",
    help='Where example_inputs does not say it, an input: "x=[seqlen,3420]:bf16". Repeatable.',
)
# The name is given, since typer 0.27 makes ``--DTYPE`` of a metavar that is the name.
_Dtype = typer.Option(
    "--dtype", metavar="DTYPE", help="Cast model and inputs: bf16, f16, f32 or f64."
)
_Devices = typer.Option(
    "--device",
    "--devices",
    metavar="DEVICE",
    show_default=False,
    help="auto, cpu, cuda:1; many: all or cuda:0,cuda:1.",
)


_Words = list[str] | None


def _of_model(
    model: str | None, sizes: _Words, inputs: _Words, dtype: str | None, device: str
) -> ModelOptions:
    plain = [text for text in sizes or () if "=" not in text]
    if len(plain) > 1:
        raise typer.BadParameter(f"--seqlens {plain[1]}: it was given before, as {plain[0]}")
    dims = tuple(text for text in sizes or () if "=" in text) or None
    seqlens = plain[0] if plain else None
    return ModelOptions(model, seqlens, dims, tuple(inputs or ()), dtype, device)


# The options of every command: how much it says on stderr.

DEBUG_VARIABLE: Final = "WARMUP_DEBUG"
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)

_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="On stderr only errors and failures.")]
_Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Print details and log to stderr; -vv logs all.",
    ),
]


def is_quiet() -> bool:
    return _is_quiet.get()


def is_verbose() -> bool:
    """Return whether -v was given: details are printed that no verdict needs."""
    return logging.getLogger("warmup").isEnabledFor(logging.INFO)


def with_options(
    command: Callable[..., None], *, needs_model: bool, has_devices: bool, compiles: bool
) -> Callable[..., None]:
    """Return *command* with the options of every command, and those of a model for ``model``."""
    plain = inspect.signature(command, eval_str=True)
    takes_model = "model" in plain.parameters

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: int, **given: Any) -> None:
        with _verbosity(verbose, quiet=quiet):
            try:
                if compiles:
                    from warmup.inductor.host_facts import check_cache_folder

                    check_cache_folder()
                if takes_model:
                    names = inspect.signature(_of_model).parameters
                    given["model"] = _of_model(**{name: given.pop(name) for name in names})
                command(**given)
            except WarmupError:
                if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
                    traceback.print_exc()
                raise

    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    of_model: dict[str, tuple[Any, Any]] = {
        "model": (Annotated[str, _Model], required),
        "sizes": (Annotated[_Words, _Sizes], None),
        "inputs": (Annotated[_Words, _Inputs], None),
        "dtype": (Annotated[str | None, _Dtype], None),
        "device": (Annotated[str, _Devices] if has_devices else DeviceOption, "auto"),
    }
    if not needs_model:
        of_model["model"] = (Annotated[str | None, _Model], None)
    found: dict[str, tuple[Any, Any]] = {}
    for name, parameter in plain.parameters.items():
        own = {name: (parameter.annotation, parameter.default)}
        found |= of_model if name == "model" else own
    found |= {"quiet": (_Quiet, False), "verbose": (_Verbose, 0)}
    parameters = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in found.items()
    ]
    run.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect and typer
    run.__annotations__ = {name: annotation for name, (annotation, _) in found.items()}
    return run


@contextlib.contextmanager
def _verbosity(level: int, *, quiet: bool) -> Iterator[None]:
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
