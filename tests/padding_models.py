"""Fixtures: small models with unaligned sizes, `pad_all`, and a table that pads a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup.keys.pad import Padding, padded_sizes
from warmup.models.weight_groups import find_groups, pad

ROOT = Path(__file__).resolve().parents[1]
HEAD = f"{ROOT / 'tests' / 'programs' / 'models' / 'unaligned_head.py'}:Head"


class Gated(nn.Module):
    """down(activation(gate(x)) * up(x)), as in SwiGLU."""

    def __init__(
        self,
        hidden: int = 32,
        inner: int = 45,
        *,
        out: int | None = None,
        activation: Callable[[torch.Tensor], torch.Tensor] = nn.functional.silu,
        biases: tuple[bool, bool, bool] = (True, True, True),
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=biases[0])
        self.up = nn.Linear(hidden, inner, bias=biases[1])
        self.down = nn.Linear(inner, out or hidden, bias=biases[2])
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class LanguageModel(nn.Module):
    """A language model without attention: an embedding, a gated layer, a head tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, 32)
        self.patch = nn.Linear(30, 32)
        self.mlp = Gated()
        self.head = nn.Linear(32, 101, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        if tokens.shape[0] != pixels.shape[0]:  # a branch that cannot be traced
            raise ValueError("not as many tokens as pixels")
        hidden = self.embed(tokens) + self.patch(torch.tanh(pixels))
        return self.head(hidden + self.mlp(hidden))


@pytest.fixture
def gated() -> type[Gated]:
    """The class of the gated layer: ``gated(hidden, inner, out=, activation=, biases=)``."""
    return Gated


@pytest.fixture
def language_model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel().eval()


@pytest.fixture
def model_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randint(0, 101, (7,)), torch.randn(7, 30)


def pad_all(model: nn.Module, pick: Callable[..., int] = min) -> Any:
    groups = find_groups(model).groups
    sizes = {
        group: Padding(pick(padded_sizes(group.structure.features, group.structure.dtype)))
        for group in groups
    }
    pad(model, sizes)
    return groups


@pytest.fixture(scope="session")
def weighed(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> tuple[Path, dict[str, Any]]:
    """A table that pads the unaligned head, built for 8 rows, and the output of build_padded.py."""
    program = str(ROOT / "tests" / "programs" / "build_padded.py")
    folder, output = run_once("weighed", program, HEAD, "head.json", **variables)
    return folder / "head.json", json.loads(output)


@pytest.fixture(scope="session")
def head() -> str:
    return HEAD
