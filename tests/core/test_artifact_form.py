"""The form of an artifact: JSON there and back, and the difference of two models in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from warmup.core.artifact_form import ArtifactForm, ModelForm, SourceLines, parse_form

FORM = ArtifactForm(
    bucket="seqlen=8",
    mode="default",
    rows=("bmm a", "mm b"),
    model=ModelForm({"w": "f32[4] strides 1 on cpu"}, {"": "net.Net"}),
    sources=(SourceLines("net", 3, 9, "ab" * 32),),
    error=1e-7,
    content="cd" * 32,
)


def test_a_form_is_read_as_it_was_written() -> None:
    """Every field comes back."""
    assert parse_form(FORM.to_json()) == FORM


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": 8},
        {"rows": ["a", 1]},
        {"model": {"tensors": {"w": 1}, "modules": {}}},
        {"model": []},
        {"sources": [{"module": "m"}]},
        {"error": "small"},
        {"other": 1},
    ],
)
def test_another_form_is_refused(change: dict[str, Any]) -> None:
    """A value of another type, or a name that does not belong, is a ValueError."""
    with pytest.raises(ValueError, match="an artifact's description"):
        parse_form(json.dumps({**json.loads(FORM.to_json()), **change}))


def test_equal_models_have_no_difference() -> None:
    """None stands for equal."""
    assert FORM.model.difference(ModelForm(FORM.model.tensors, FORM.model.modules)) is None


def test_a_difference_names_the_tensor_and_both_texts() -> None:
    """Three at most are named, the others counted."""
    here = ModelForm({f"v{i}": "f32[4] strides 1 on cpu" for i in range(4)}, {"": "net.Net"})
    assert FORM.model.difference(here) == (
        "w: bundle f32[4] strides 1 on cpu, here none; v0: bundle none, here f32[4] strides 1 on "
        "cpu; v1: bundle none, here f32[4] strides 1 on cpu and 2 more"
    )


def test_a_difference_of_classes_names_the_module() -> None:
    """The model itself has no name of its own."""
    here = ModelForm(FORM.model.tensors, {"": "net.Other"})
    assert FORM.model.difference(here) == "the model: bundle net.Net, here net.Other"
