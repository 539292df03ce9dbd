"""`find_candidates`: the Linears of a model with unaligned sizes, and why some cannot be padded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from warmup.core.dtypes import dtype_name
from warmup.keys.weight import WEIGHT_DTYPES, is_aligned
from warmup.models.padding.tracing import is_hooked

PARAMETERS: Final = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class PaddableLinear:
    """A Linear with an unaligned size; ``refusal`` is why it cannot be padded, None if it can.

    ``names`` are all its names in the model, of which messages use the first; ``tied`` names the
    other modules that have its weight or bias. ``dtype`` is the short name that keys use.
    """

    linear: nn.Linear
    dtype: str
    names: tuple[str, ...]
    tied: tuple[str, ...]
    refusal: str | None

    @property
    def has_unaligned_output(self) -> bool:
        """Whether the number of output features is unaligned."""
        return not is_aligned(self.linear.out_features, self.dtype)

    @property
    def has_unaligned_input(self) -> bool:
        """Whether the number of input features is unaligned."""
        return not is_aligned(self.linear.in_features, self.dtype)


def find_candidates(model: nn.Module) -> list[PaddableLinear]:
    """Return the Linears of *model* that have an unaligned size, in the order of its modules."""
    names, holders, sharers = names_of(model), _modules_by_parameter(model), _count_sharers(model)
    candidates: list[PaddableLinear] = []
    for module in model.modules():
        first = next(module.parameters(), None) if isinstance(module, nn.Linear) else None
        if first is None or (dtype := dtype_name(first.dtype)) not in WEIGHT_DTYPES:
            continue
        assert isinstance(module, nn.Linear)
        own = [tensor for tensor in module.parameters(recurse=False) if is_plain(tensor)]
        tied = dict.fromkeys(holder for tensor in own for holder in holders[id(tensor)])
        refusal = _refusal(module)
        if any(sharers[address_of(tensor)] > 1 for tensor in own):
            refusal = refusal or "shares memory with another tensor"
        others = [holder for holder in tied if holder is not module]
        if any(isinstance(holder, nn.Linear) for holder in others):
            refusal = refusal or f"has its weight in common with {names[others[0]][0]}"
        other_names = tuple(names[holder][0] for holder in others)
        candidate = PaddableLinear(module, dtype, tuple(names[module]), other_names, refusal)
        if candidate.has_unaligned_output or candidate.has_unaligned_input:
            candidates.append(candidate)
    return candidates


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield each parameter and buffer of *model* once, but no sharded or quantized tensors."""
    yield from filter(is_plain, model.parameters())
    yield from filter(is_plain, model.buffers())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is of torch's plain types: a DTensor, for example, has no single memory."""
    return type(tensor) in (torch.Tensor, nn.Parameter)


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the storage of *tensor*."""
    return tensor.untyped_storage().data_ptr()


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Return all names of each module."""
    names = defaultdict[nn.Module, list[str]](list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    return names


def _refusal(linear: nn.Linear) -> str | None:
    if type(linear) is not nn.Linear:
        return f"is a {type(linear).__name__}, not a plain Linear"
    if is_hooked(linear):
        return "has hooks or a forward of its own"
    weight, bias = (vars(linear)["_parameters"].get(name) for name in PARAMETERS)
    if type(weight) is not nn.Parameter or type(bias) not in (nn.Parameter, type(None)):
        types = {type(tensor).__name__ for tensor in (weight, bias)} - {"NoneType", "Parameter"}
        return f"its weight or bias is no plain parameter ({', '.join(sorted(types)) or 'absent'})"
    if weight.is_inference():
        return "was made in inference mode"
    if weight.is_meta:
        return "has no values yet, it is on the meta device"
    if bias is not None and (bias.dtype, bias.device) != (weight.dtype, weight.device):
        return "its bias has another dtype or device than its weight"
    if weight.shape != (linear.out_features, linear.in_features) or not weight.is_contiguous():
        return "its weight is not a contiguous matrix of its two sizes"
    return None


def _modules_by_parameter(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Return the modules that have a parameter, by the parameter's id."""
    holders = defaultdict[int, list[nn.Module]](list)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)].append(module)
    return holders


def _count_sharers(model: nn.Module) -> Counter[int]:
    """Return how many tensors share each storage, by its address."""
    return Counter(address_of(tensor) for tensor in tensors_of(model))
