"""`with_model_options`, `with_engine_options`: how a model, or an engine in its place, is made."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli.options import adding
from warmup.cli.output import say
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.models.model_target import with_arguments

_MODEL_OPTION: Final = "model"
_ModelArgs = Annotated[
    str | None,
    typer.Option(
        help="JSON object of arguments for --model: '{\"layers\": 2}'; for hf:, config fields."
    ),
]
_RandomWeights = Annotated[
    bool,
    typer.Option("--random-weights", help="With --model hf:PATH: no weights are read."),
]
_COMMAND: Final = "command"
_ON_CPU: Final = (
    "on a CPU vLLM's linears call oneDNN and ask inductor nothing, unless a plugin changes that: "
    "there is nothing to build, so serve without a table (docs/how-to/vllm-and-sglang.md)"
)
_FromVllm = Annotated[
    Path | None,
    typer.Option(
        "--from-vllm",
        help="Instead of --model: start vLLM's engine for this model, with random weights, and "
        "tune what it compiles.",
    ),
]
_CompileSizes = Annotated[
    str | None,
    typer.Option(help="With --from-vllm: the server's compile_sizes, as 1,8,64."),
]
_Ranks = Annotated[
    int, typer.Option("--tensor-parallel", min=1, help="With --from-vllm: ranks of the engine.")
]
_EngineArguments = Annotated[
    str | None,
    typer.Option(
        help="With --from-vllm: other arguments of vllm.LLM, as '{\"max_model_len\": 4096}'.",
    ),
]
_OF_ENGINE: Final = {
    "from_vllm": (_FromVllm, None),
    "compile_sizes": (_CompileSizes, None),
    "tensor_parallel": (_Ranks, 1),
    "engine_args": (_EngineArguments, None),
}


def with_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with these options, if it has ``--model``; they enter the model's text."""
    if _MODEL_OPTION not in inspect.signature(command).parameters:
        return command

    @functools.wraps(command)
    def run(*, model_args: str | None, random_weights: bool, **given: Any) -> None:
        if given[_MODEL_OPTION] is not None:
            given[_MODEL_OPTION] = with_arguments(
                given[_MODEL_OPTION], model_args, random_weights=random_weights
            )
        elif model_args is not None or random_weights:
            raise SettingsError("--model-args and --random-weights make a model", "give --model")
        command(**given)

    options = {"model_args": (_ModelArgs, None), "random_weights": (_RandomWeights, False)}
    return adding(options, to=command, by=run, behind=_MODEL_OPTION)


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with these options; they become the program that it runs."""

    @functools.wraps(command)
    def run(
        *,
        from_vllm: Path | None,
        compile_sizes: str | None,
        tensor_parallel: int,
        engine_args: str | None,
        **given: Any,
    ) -> None:
        if from_vllm is not None:
            if given[_COMMAND]:
                raise SettingsError("--from-vllm names the program itself", "give no command")
            given[_COMMAND] = _command(from_vllm, compile_sizes, tensor_parallel, engine_args)
            _run_engine(command, given)
            return
        if compile_sizes is not None or tensor_parallel > 1 or engine_args is not None:
            raise SettingsError(
                "--compile-sizes, --tensor-parallel and --engine-args are for vLLM's engine",
                "give --from-vllm FOLDER",
            )
        command(**given)

    return adding(_OF_ENGINE, to=command, by=run, behind="after")


def _run_engine(command: Callable[..., None], given: Mapping[str, Any]) -> None:
    """Run *command*; say first, and where nothing was asked, why vLLM asks nothing on a CPU."""
    from warmup.serving.engines import is_on_gpu

    if is_on_gpu():
        command(**given)
        return
    say(f"note: {_ON_CPU}")
    try:
        command(**given)
    except NothingRecordedError as error:
        raise NothingRecordedError(str(error.args[0]), _ON_CPU) from error


def _command(folder: Path, sizes: str | None, ranks: int, arguments: str | None) -> list[str]:
    from warmup.serving.engines import vllm_command

    return vllm_command(folder, _sizes(sizes), ranks=ranks, engine=_object(arguments))


def _sizes(text: str | None) -> list[int]:
    """Return the numbers of ``--compile-sizes``."""
    try:
        return [int(word) for word in (text or "").split(",") if word.strip()]
    except ValueError as error:
        raise SettingsError(
            f"--compile-sizes {text}: {error}", "name numbers of tokens, as 1,8,64"
        ) from error


def _object(text: str | None) -> Mapping[str, Any]:
    """Return the JSON object of ``--engine-args``."""
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"--engine-args: {error}", "give a JSON object, as '{\"max_model_len\": 4096}'"
        ) from error
    if not isinstance(found, dict):
        raise SettingsError("--engine-args is no JSON object", "as '{\"max_model_len\": 4096}'")
    return found
