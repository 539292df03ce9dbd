"""`tensors_in`: the tensors in nested arguments or outputs; also their digest and shape check."""

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
    """Return a digest of the tensors of *tree*, computed on their device; not cryptographic."""
    hashed = hashlib.sha256()
    for tensor in tensors_in(tree):
        hashed.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        hashed.update(f"{_hash(_bits(tensor))}\n".encode())
    return hashed.hexdigest()


def check_shapes(expected: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Check that both sequences have equally many tensors, of the same shapes in order.

    Raises:
        ModelError: the shapes differ.
    """
    of_eager, own = ([tuple(tensor.shape) for tensor in tensors] for tensors in (expected, outputs))
    if own != of_eager:
        raise ModelError(f"its output has shapes {own}, eager's has {of_eager}")


def _hash(bits: torch.Tensor) -> int:
    """Return a sum of *bits* weighted by position; integer sums do not depend on the order."""
    total = 0
    for chunk in torch.split(bits.reshape(-1), _CHUNK_ELEMENTS):
        positions = torch.arange(1, chunk.numel() + 1, device=chunk.device)
        total = (3 * total + int((chunk.long() * positions).sum().item())) % _MODULUS
    return total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of *tensor* as integers of the same size, for any dtype."""
    whole = tensor.detach().contiguous()
    if whole.is_complex():
        whole = torch.view_as_real(whole)
    return whole.view(_INTEGER_OF_SIZE[whole.element_size()])
