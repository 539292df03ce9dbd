"""Llama-shaped layers at a 32nd of the width, f32, for starts on a CPU: 2, 8 or 32 of them."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from llama_block import LlamaBlocks

_HIDDEN = 128


def two() -> nn.Module:
    """Return 2 layers."""
    return _layers(2)


def eight() -> nn.Module:
    """Return 8 layers."""
    return _layers(8)


def many() -> nn.Module:
    """Return 32 layers."""
    return _layers(32)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return hidden states of one sequence."""
    return torch.randn(1, seqlen, _HIDDEN)


def _layers(count: int) -> nn.Module:
    return LlamaBlocks(hidden=_HIDDEN, heads=4, kv_heads=2, ffn=448, layers=count).float()
