"""`ModelTarget`: the parts of the text after ``--model``; `LoadedModel`: the model it names.

Nothing here imports torch: the command line reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from warmup.core.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

PRETRAINED: Final = "hf:"
RANDOM_PRETRAINED: Final = "hf-random:"
Dims = tuple[str | int, ...]  # of an input: named ones, and sizes


@dataclass(frozen=True, slots=True)
class Assumption:
    """What was taken because nobody named it, and how to name something else."""

    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode, the ``example_inputs`` of its file if any, and a name for its table.

    ``chosen`` says why it is this model where a file has several and none was named, else empty.
    With ``has_siblings`` the file defines other classes, to which ``example_inputs`` may belong.
    ``inputs_assumed`` is for where nobody names any inputs.
    """

    module: nn.Module
    example_inputs: Callable[..., Any] | None
    name: str
    chosen: str = ""
    has_siblings: bool = False
    assumed: Assumption | None = None
    inputs_assumed: Assumption | None = None


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model's ``place`` (file, module or folder, with a name), and the arguments to make it.

    With ``is_pretrained`` the place is a folder or config file of the transformers library, whose
    weights are random with ``is_random``. The text form is ``PLACE``, ``hf:PLACE`` or
    ``hf-random:PLACE``, with the arguments behind it as JSON: ``mlp.py:make{"layers": 2}``.
    """

    place: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_pretrained: bool = False
    is_random: bool = False

    def __str__(self) -> str:
        prefix = RANDOM_PRETRAINED if self.is_random else PRETRAINED if self.is_pretrained else ""
        arguments = json.dumps(dict(self.arguments)) if self.arguments else ""
        return f"{prefix}{self.place}{arguments}"


def parse_target(text: str) -> ModelTarget:
    """Return the parts of *text*; a ModelError where no JSON object begins at the first brace."""
    place, brace, rest = text.partition("{")
    arguments: Any = {}
    try:
        arguments = json.loads(brace + rest) if brace else {}
    except ValueError as error:
        raise ModelError(
            f"--model {text!r}: the arguments are no JSON ({error})", "write '{\"layers\": 2}'"
        ) from error
    for prefix in (PRETRAINED, RANDOM_PRETRAINED):
        if place.startswith(prefix):
            is_random = prefix == RANDOM_PRETRAINED
            return ModelTarget(place.removeprefix(prefix), arguments, True, is_random)  # noqa: FBT003
    return ModelTarget(place, arguments)
