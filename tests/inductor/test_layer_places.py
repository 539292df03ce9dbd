"""Where dynamo read a value of a layer: the expressions that are places, and those refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from warmup.inductor.layers.form import UnshareableLayerError
from warmup.inductor.layers.place import MissingPlaceError, value_at

_GLOBALS = {"scale": torch.ones(3), "config": SimpleNamespace(sizes={"a b": [4, 5]})}


@pytest.mark.parametrize(
    "text",
    [
        "L['layer']._modules['0']._parameters['weight']",
        "L['layer']._modules['0'].__dict__['in_features']",
        "L['args'][0][-1]",
        "L['kwargs']['mask'].size()[1]",
        "G['scale']",
        "G['config'].sizes['a b'][1]",
        "list(dict.keys(G['config'].sizes))[0]",
        "list.__getitem__(dict.__getitem__(G['config'].sizes, 'a b'), 0)",
        "getattr(L['layer'], 'training')",
        "type(L['layer'])",
        "dict(L['layer'].__dict__)['training']",
        "object.__getattribute__(L['layer'], 'training')",
    ],
)
def test_a_place_has_the_value_that_python_finds_there(text: str) -> None:
    """The value is the object itself that Python's own evaluation of the expression gives."""
    layer = nn.Sequential(nn.Linear(2, 3))
    frame = {"layer": layer, "args": ([1, 2],), "kwargs": {"mask": torch.ones(2, 7)}}
    expected: Any = eval(text, {"L": frame, "G": _GLOBALS})  # noqa: S307  what it is compared with
    assert value_at(text, layer, _GLOBALS, frame) is expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("___from_numpy(L['layer'])", "is no plain place$"),
        ("L['layer'].eval()", "is no plain place$"),
        ("L['layer'].sum(L['layer'].eval())", "is no plain place$"),
        ("__import__('os').environ", r"in which __import__\('os'\) is none"),
        ("L['layer'][L['layer']]", r"in which L\['layer'\] is none"),
        ("L['layer'] or 1", "is no plain place$"),
        ("(1, L['layer'])", "is no plain place$"),
        ("L['layer'].training['0']", r"is no plain place \('bool' object is not subscriptable"),
        ("<unknown source>", r"is no plain place \(invalid syntax"),
    ],
)
def test_an_expression_with_another_part_is_refused(text: str, reason: str) -> None:
    """The layer is not shared, and the reason has the expression and its part that is no place."""
    with pytest.raises(UnshareableLayerError, match=reason):
        value_at(text, nn.Sequential(nn.Linear(2, 3)), {})


@pytest.mark.parametrize("text", ["L['layer'].nothing", "L['layer']._modules['7']"])
def test_a_place_that_is_missing_is_told_from_one_that_is_refused(text: str) -> None:
    """A guard may be about just that, as after ``hasattr``; what reads the value still ends."""
    with pytest.raises(MissingPlaceError, match=r"^reads L\['layer'\]\..*, which is missing \("):
        value_at(text, nn.Sequential(nn.Linear(2, 3)), {})
