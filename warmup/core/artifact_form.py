"""`ArtifactForm`: what a compiled artifact of a bundle was made from, as JSON beside the artifact.

An artifact is code that torch compiled ahead of time for one bucket. Its form is read before the
artifact is: a model that differs is refused without loading anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from warmup.core.strict_json import parse_json

_MOST_NAMED: Final = 3
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ModelForm:
    """The tensors and the modules of a model by name, each as text, without values.

    A tensor's text has its dtype, shape, strides and device, or the name that it shares a tensor
    with; a module's text has its class and the number of its hooks.
    """

    tensors: Mapping[str, str]
    modules: Mapping[str, str]

    def difference(self, here: ModelForm) -> str | None:
        """Return where *here* differs, three names at most and a count; None where it is equal."""
        pairs = ((self.tensors, here.tensors), (self.modules, here.modules))
        found = [
            f"{name or 'the model'}: bundle {ours.get(name, 'none')}, here {own.get(name, 'none')}"
            for ours, own in pairs
            for name in dict.fromkeys((*ours, *own))
            if ours.get(name) != own.get(name)
        ]
        if not found:
            return None
        others = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return "; ".join(found[:_MOST_NAMED]) + others


@dataclass(frozen=True, slots=True)
class SourceLines:
    """Lines of a module that the artifact was traced from: first, behind the last, and SHA-256."""

    module: str
    first: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactForm:
    """One artifact: its bucket, the mode of torch.compile, and what it was compiled from.

    ``rows`` has the keys of the table's rows that answered while it was compiled. ``error`` is its
    relative L2 distance to the uncompiled model at the build, ``content`` the SHA-256 of the file.
    """

    bucket: str
    mode: str
    rows: tuple[str, ...]
    model: ModelForm
    sources: tuple[SourceLines, ...]
    error: float
    content: str

    def to_json(self) -> str:
        """Return this form as JSON; equal forms give equal texts."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)


def parse_form(text: str) -> ArtifactForm:
    """Return the form in *text*, which may be any text.

    Raises:
        ValueError: *text* is not the JSON of a form.
    """
    value = _of(parse_json(text), dict)
    if value.keys() != set(ArtifactForm.__slots__):
        raise ValueError("an artifact's description has other names than it should")
    model = _of(value["model"], dict)
    return ArtifactForm(
        bucket=_of(value["bucket"], str),
        mode=_of(value["mode"], str),
        rows=tuple(_list(value["rows"], lambda row: _of(row, str))),
        model=ModelForm(_texts(model.get("tensors")), _texts(model.get("modules"))),
        sources=tuple(_list(value["sources"], _source)),
        error=float(_of(value["error"], float)),
        content=_of(value["content"], str),
    )


def _source(value: Any) -> SourceLines:
    found = _of(value, dict)
    first, end = _of(found.get("first"), int), _of(found.get("end"), int)
    return SourceLines(_of(found.get("module"), str), first, end, _of(found.get("sha256"), str))


def _texts(value: Any) -> dict[str, str]:
    return {name: _of(text, str) for name, text in _of(value, dict).items()}


def _list(value: Any, read: Callable[[Any], _Value]) -> list[_Value]:
    return [read(each) for each in _of(value, list)]


def _of(value: Any, kind: type[_Value]) -> _Value:
    if type(value) is not kind:
        raise ValueError(f"an artifact's description has no {kind.__name__} where one belongs")
    return value
