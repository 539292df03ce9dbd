"""`ModelTarget`: the parts of the text after ``--model``, and that text again.

Nothing here imports torch: the command line reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from warmup.core.errors import ModelError

PRETRAINED: Final = "hf:"
RANDOM_PRETRAINED: Final = "hf-random:"


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
    """Return the parts of *text*.

    Raises:
        ModelError: what stands from the first brace on is no JSON object.
    """
    place, brace, rest = text.partition("{")
    arguments = parse_arguments(brace + rest, f"--model {text!r}") if brace else {}
    for prefix in (PRETRAINED, RANDOM_PRETRAINED):
        if place.startswith(prefix):
            is_random = prefix == RANDOM_PRETRAINED
            return ModelTarget(place.removeprefix(prefix), arguments, True, is_random)  # noqa: FBT003
    return ModelTarget(place, arguments)


def parse_arguments(text: str, source: str) -> dict[str, Any]:
    """Return the JSON object *text*, which *source* gave.

    Raises:
        ModelError: it is no JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ModelError(
            f"{source}: the arguments are no JSON ({error})", "write '{\"layers\": 2}'"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(
            f"{source}: the arguments are {type(found).__name__}, no JSON object",
            "name each argument: '{\"layers\": 2}'",
        )
    return found
