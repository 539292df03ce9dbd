"""`with_engine_options`: the options beside ``--out`` of a build that starts vLLM by itself."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli.output import say
from warmup.core.errors import NothingRecordedError, SettingsError

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


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with these options; they become the program that it runs."""
    plain = inspect.signature(command, eval_str=True)

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

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=keyword) for each in plain.parameters.values()]
    place = 1 + next(i for i, each in enumerate(parameters) if each.name == "after")
    parameters[place:place] = [
        inspect.Parameter("from_vllm", keyword, default=None, annotation=_FromVllm),
        inspect.Parameter("compile_sizes", keyword, default=None, annotation=_CompileSizes),
        inspect.Parameter("tensor_parallel", keyword, default=1, annotation=_Ranks),
        inspect.Parameter("engine_args", keyword, default=None, annotation=_EngineArguments),
    ]
    run.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect and typer
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _run_engine(command: Callable[..., None], given: Mapping[str, Any]) -> None:
    """Run *command*; say first, and where nothing was asked, why vLLM asks nothing on a CPU."""
    from warmup.serving.vllm_engine import is_on_gpu

    if is_on_gpu():
        command(**given)
        return
    say(f"note: {_ON_CPU}")
    try:
        command(**given)
    except NothingRecordedError as error:
        raise NothingRecordedError(str(error.args[0]), _ON_CPU) from error


def _command(folder: Path, sizes: str | None, ranks: int, arguments: str | None) -> list[str]:
    from warmup.serving.vllm_engine import vllm_command

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
