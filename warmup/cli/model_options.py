"""`with_model_options`: the options beside ``--model`` that say how the model is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from warmup.core.errors import SettingsError
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


def with_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with these options, if it has ``--model``; they enter the model's text."""
    plain = inspect.signature(command, eval_str=True)
    if _MODEL_OPTION not in plain.parameters:
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

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for parameter in plain.parameters.values():
        parameters.append(parameter.replace(kind=keyword))
        if parameter.name == _MODEL_OPTION:
            parameters += [
                inspect.Parameter("model_args", keyword, default=None, annotation=_ModelArgs),
                inspect.Parameter(
                    "random_weights", keyword, default=False, annotation=_RandomWeights
                ),
            ]
    run.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect and typer
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
