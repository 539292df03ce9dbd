"""Kernels of Helion, forward only, as backends of layers under `warmup bench layers`.

warmup bench layers examples/helion_layers.py:RmsNorm --backends compiled,helion

It needs `pip install "helion>=1.2"`. The kernels are not tuned: each has one config, with more
warps for wider rows. With ``quick`` or ``full`` in ``HELION_AUTOTUNE_EFFORT`` Helion searches
instead, for minutes per kernel and shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import helion
import helion.language as hl
import torch

from warmup.bench import layers

_EFFORT: Final = os.environ.get("HELION_AUTOTUNE_EFFORT", "none")
_ROW: Final = (1,)  # a program for each row
_STRIP: Final = (1, 4096)  # a row in pieces
_PER_WARP: Final = 1024  # elements of a row

_kernel: Final[Callable[[Callable[..., Any]], Any]] = helion.kernel(
    static_shapes=True, autotune_effort=_EFFORT
)
_bound: dict[tuple[object, ...], Any] = {}


def _run(kernel: Any, blocks: tuple[int, ...], *args: torch.Tensor | float) -> Any:
    """Return the result of *kernel* on *args*, with block sizes *blocks* unless Helion tunes."""
    if _EFFORT != "none":
        return kernel(*args)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    key = (kernel, *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
    if key not in _bound:
        width = blocks[1] if blocks == _STRIP else tensors[0].shape[-1]
        warps = min(max((1 << (width - 1).bit_length()) // _PER_WARP, 4), 16)
        _bound[key] = kernel.bind(args)
        _bound[key].set_config(helion.Config(block_sizes=list(blocks), num_warps=warps))
    return _bound[key](*args)


@_kernel
def _rms_norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(values * values, dim=-1) + eps)
        out[tile, :] = (values * scale[:, None] * weight[:].to(torch.float32)).to(x.dtype)
    return out


@_kernel
def _layer_norm_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        apart = values - torch.mean(values, dim=-1)[:, None]
        scale = torch.rsqrt(torch.mean(apart * apart, dim=-1) + eps)
        normal = apart * scale[:, None]
        shifted = normal * weight[:].to(torch.float32) + bias[:].to(torch.float32)
        out[tile, :] = shifted.to(x.dtype)
    return out


@_kernel
def _softmax_rows(x: torch.Tensor) -> torch.Tensor:
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        powers = torch.exp(values - torch.amax(values, dim=-1)[:, None])
        out[tile, :] = (powers / torch.sum(powers, dim=-1)[:, None]).to(x.dtype)
    return out


@_kernel
def _log_sums(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.size()
    sums = torch.empty([rows], dtype=torch.float32, device=x.device)
    for tile in hl.tile(rows):
        most = hl.full([tile], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile], dtype=torch.float32)
        for along in hl.tile(columns):
            values = x[tile, along].to(torch.float32)
            new = torch.maximum(most, torch.amax(values, dim=-1))
            powers = torch.sum(torch.exp(values - new[:, None]), dim=-1)
            total = total * torch.exp(most - new) + powers
            most = new
        sums[tile] = most + torch.log(total)
    return sums


@_kernel
def _swiglu_tiles(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(gate)
    for tile in hl.tile(gate.size()):
        values = gate[tile].to(torch.float32)
        out[tile] = (values * torch.sigmoid(values) * up[tile].to(torch.float32)).to(gate.dtype)
    return out


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> Any:
    sums = _run(_log_sums, _STRIP, logits)
    return (sums - logits.gather(1, targets[:, None])[:, 0]).mean().to(logits.dtype)


class RmsNorm(layers.RmsNorm):
    """The built-in layer of this name, as are those below."""

    def helion(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return _run(_rms_norm_rows, _ROW, x, weight, layers.EPS)


class LayerNorm(layers.LayerNorm):
    """Likewise."""

    def helion(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return _run(_layer_norm_rows, _ROW, x, weight, bias, layers.EPS)


class Softmax(layers.Softmax):
    """Likewise."""

    helion = staticmethod(partial(_run, _softmax_rows, _ROW))


class SwiGlu(layers.SwiGlu):
    """Likewise."""

    helion = staticmethod(partial(_run, _swiglu_tiles, _STRIP))


class CrossEntropy(layers.CrossEntropy):
    """Likewise."""

    helion = staticmethod(_cross_entropy)
