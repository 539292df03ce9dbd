"""Small layers for starts on a CPU: 2, 8 or 32 of them, all of which ask for the same rows."""

import torch
from torch import nn

_HIDDEN = 128


class Layer(nn.Module):
    """RMSNorm, 128 -> 256 with GELU, 256 -> 128 with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(_HIDDEN)
        self.up, self.down = nn.Linear(_HIDDEN, 2 * _HIDDEN), nn.Linear(2 * _HIDDEN, _HIDDEN)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        inner = nn.functional.gelu(self.up(self.norm(hidden_states)))
        return hidden_states + self.down(inner)


class Layers(nn.Module):
    """Some layers in a row."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


def two() -> nn.Module:
    """Return 2 layers."""
    return Layers(2)


def eight() -> nn.Module:
    """Return 8 layers."""
    return Layers(8)


def many() -> nn.Module:
    """Return 32 layers."""
    return Layers(32)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return hidden states of one sequence."""
    return torch.randn(1, seqlen, _HIDDEN)
