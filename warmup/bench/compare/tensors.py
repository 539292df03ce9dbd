"""The tensors in nested arguments and outputs: listed, digested, compared by shape."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from warmup.core.errors import ModelError

_CHUNK_ELEMENTS = 1 << 24  # elements hashed at once: 128 MiB as integers
_MODULUS = 1 << 64
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Return the tensors of *tree*, in order."""
    leaves = torch.utils._pytree.tree_leaves(tree)  # noqa: SLF001  torch's own tree walk has no public name
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def digest_of(tree: object) -> str:
    """Return a digest of the tensors of *tree*, hashed where they are; no proof against malice."""
    hashed = hashlib.sha256()
    for tensor in tensors_in(tree):
        hashed.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        hashed.update(f"{_hash(_bits(tensor))}\n".encode())
    return hashed.hexdigest()


def check_shapes(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> None:
    """Return when both have tensors of the same shapes, one by one.

    Raises:
        ModelError: they have not.
    """
    of_eager, own = ([tuple(one.shape) for one in tensors] for tensors in (expected, found))
    if own != of_eager:
        raise ModelError(f"its output has shapes {own}, eager's has {of_eager}")


def _hash(bits: torch.Tensor) -> int:
    """Return a sum of *bits* weighted by their places; integers, so the same in any order."""
    total = 0
    for chunk in torch.split(bits.reshape(-1), _CHUNK_ELEMENTS):
        places = torch.arange(1, chunk.numel() + 1, device=chunk.device)
        total = (3 * total + int((chunk.long() * places).sum().item())) % _MODULUS
    return total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* as integers, which can be hashed whatever its dtype."""
    whole = tensor.detach().contiguous()
    if whole.is_complex():
        whole = torch.view_as_real(whole)
    return whole.view(_INTEGER_OF_SIZE[whole.element_size()])
