"""The Linears of a model that could be padded, and why the others cannot."""

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
    """A Linear with a size that is not aligned; ``refusal`` says why it cannot be padded.

    ``names`` are all it is reached by, the first one being the one it goes by; ``tied`` names the
    other modules that have its weight or bias. ``dtype`` is spelled as keys do.
    """

    linear: nn.Linear
    dtype: str
    names: tuple[str, ...]
    tied: tuple[str, ...]
    refusal: str | None

    @property
    def makes_unaligned(self) -> bool:
        """Whether the features it makes are not aligned."""
        return not is_aligned(self.linear.out_features, self.dtype)

    @property
    def takes_unaligned(self) -> bool:
        """Whether the features it takes are not aligned."""
        return not is_aligned(self.linear.in_features, self.dtype)


def find_candidates(model: nn.Module) -> list[PaddableLinear]:
    """Return the Linears of *model* that have an unaligned size, in the order of its modules."""
    names, holders, memory = names_of(model), _holders(model), _memory(model)
    found: list[PaddableLinear] = []
    for module in model.modules():
        first = next(module.parameters(), None) if isinstance(module, nn.Linear) else None
        if first is None or (dtype := dtype_name(first.dtype)) not in WEIGHT_DTYPES:
            continue
        assert isinstance(module, nn.Linear)
        own = [each for each in module.parameters(recurse=False) if is_plain(each)]
        tied = dict.fromkeys(each for tensor in own for each in holders[id(tensor)])
        refusal = _refusal(module)
        if any(memory[address_of(each)] > 1 for each in own):
            refusal = refusal or "shares memory with another tensor"
        others = [each for each in tied if each is not module]
        if any(isinstance(each, nn.Linear) for each in others):
            refusal = refusal or f"has its weight in common with {names[others[0]][0]}"
        candidate = PaddableLinear(
            module, dtype, tuple(names[module]), tuple(names[each][0] for each in others), refusal
        )
        if candidate.makes_unaligned or candidate.takes_unaligned:
            found.append(candidate)
    return found


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield each parameter and buffer of *model* once, sharded and quantized ones left out."""
    yield from filter(is_plain, model.parameters())
    yield from filter(is_plain, model.buffers())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is of torch's own types: others, such as DTensor, have no one memory."""
    return type(tensor) in (torch.Tensor, nn.Parameter)


def address_of(tensor: torch.Tensor) -> int:
    """Return where the memory begins that *tensor* is in."""
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
        kinds = {type(each).__name__ for each in (weight, bias)} - {"NoneType", "Parameter"}
        return f"its weight or bias is no plain parameter ({', '.join(sorted(kinds)) or 'absent'})"
    if weight.is_inference():
        return "was made in inference mode"
    if weight.is_meta:
        return "has no values yet, it is on the meta device"
    if bias is not None and (bias.dtype, bias.device) != (weight.dtype, weight.device):
        return "its bias has another dtype or device than its weight"
    if weight.shape != (linear.out_features, linear.in_features) or not weight.is_contiguous():
        return "its weight is not a contiguous matrix of its two sizes"
    return None


def _holders(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Return the modules that have each parameter, by its id."""
    holders = defaultdict[int, list[nn.Module]](list)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)].append(module)
    return holders


def _memory(model: nn.Module) -> Counter[int]:
    """Return how many tensors are in each memory, by its address."""
    return Counter(address_of(tensor) for tensor in tensors_of(model))
