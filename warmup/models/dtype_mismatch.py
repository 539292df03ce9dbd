"""`naming_dtypes`: a model that fails because its inputs have another dtype than its parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ModelError, WarmupError
from warmup.models.fake_model import fake_copy
from warmup.models.loading import Inputs, forward_parameters

_tree_map = torch.utils._pytree.tree_map  # noqa: SLF001  torch's own tree walk has no public name


@contextlib.contextmanager
def naming_dtypes(module: nn.Module, inputs: Inputs) -> Iterator[None]:
    """Turn a failure of *module* on *inputs* into a remedy where their dtypes are the reason.

    They are when on fake tensors the model fails as well, and does not fail with inputs of the
    parameters' dtype. Other failures pass unchanged.

    Raises:
        ModelError: the dtypes are the reason; it names both, and the options that change them.
    """
    try:
        yield
    except WarmupError:
        raise
    except Exception as error:
        mismatch = dtype_mismatch(module, inputs)
        if mismatch is None:
            raise
        raise mismatch from error


def dtype_mismatch(module: nn.Module, inputs: Inputs) -> ModelError | None:
    """Return the error for a *module* that fails on *inputs* because of their dtype, else None."""
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    arguments = [*forward_parameters(module), *map(str, range(len(inputs.args)))]
    named = {**dict(zip(arguments, inputs.args, strict=False)), **inputs.kwargs}
    others = {
        name: value.dtype
        for name, value in named.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != own
    }
    if own is None or not others:
        return None
    if _accepts(module, inputs, None) or not _accepts(module, inputs, own):
        return None
    name, dtype = next(iter(others.items()))
    short = dtype_name(own)
    return ModelError(
        f"the parameters of the model are {short}, and its input {name} is {dtype_name(dtype)}",
        f'cast both with --dtype {short}, or name the input: --input "{name}=[...]:{short}"',
    )


def _accepts(module: nn.Module, inputs: Inputs, dtype: torch.dtype | None) -> bool:
    """Whether *module* accepts *inputs* on fake tensors, floating ones cast to *dtype* if given."""

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        is_cast = dtype is not None and leaf.is_floating_point()
        return torch.empty(leaf.shape, dtype=dtype if is_cast else leaf.dtype, device=leaf.device)

    def make_arguments() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        args, kwargs = _tree_map(fake, (inputs.args, inputs.kwargs))
        return args, kwargs

    try:
        fake_copy(module).call(make_arguments)
    except Exception:  # noqa: BLE001  the user's model may raise anything: it is not accepted then
        return False
    return True
