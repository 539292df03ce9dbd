"""Linears padded with zeros in place, and put back.

A padded Linear is of a subclass that an existing Linear is made to be of, not a module put into its
place: whatever refers to the Linear keeps doing so, names and `isinstance` hold, and undoing it
needs no parent. Its ``weight`` and ``bias`` stay the same parameters with their own sizes, now
views of the padded tensors, which are buffers that no state dict holds. So whoever reads sizes,
loads, ties or changes a parameter in place sees what was there before, and the memory is held once.
What replaces the memory of a parameter is followed by the class: moves and casts, deepcopy, pickle,
assignments. Only an assignment to ``parameter.data`` from outside is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from warmup.core.errors import SettingsError
from warmup.keys.gemm import Dim
from warmup.keys.weight import Padding
from warmup.models.padding.groups import Group
from warmup.models.padding.linears import PARAMETERS, address_of


class PaddedLinear(nn.Linear):
    """A Linear that computes with more features than its parameters have, the rest being zero.

    It takes padded features as they come when ``takes_padded``, else it pads them if its weight
    needs that; it gives them away padded when ``gives_padded``, else it cuts them to size. For the
    numbers of rows ``as_is``, lowest and highest, it computes with its parameters as they are.
    """

    padded_weight: torch.Tensor
    padded_bias: torch.Tensor | None
    takes_padded: bool
    gives_padded: bool
    as_is: tuple[tuple[int, int | None], ...]

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as nn.Linear names it
        """Return the product with the padded weight, padded or of its own size as it should be."""
        for low, high in self.as_is:  # the sizes of a compiled graph decide, once
            rows = input.numel() // self.in_features
            if rows >= low and (high is None or rows <= high):
                return super().forward(input)
        made, taken = self.padded_weight.shape
        if taken != self.in_features and not self.takes_padded:
            input = nn.functional.pad(input, (0, taken - self.in_features))  # noqa: A001
        output = nn.functional.linear(input, self.padded_weight, self.padded_bias)
        if made == self.out_features or self.gives_padded:
            return output
        return output[..., : self.out_features]

    def extra_repr(self) -> str:
        """Return the sizes of the parameters, and of the padded weight."""
        made, taken = self.padded_weight.shape
        return f"{super().extra_repr()}, padded to {taken} -> {made}"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARAMETERS and isinstance(value, torch.Tensor):
            old = getattr(self, name)
            if old is None or old.shape != value.shape:
                raise SettingsError(
                    f"a padded Linear is given another {name}, of size {tuple(value.shape)}",
                    "restore the model with warmup.models.padding.apply.restore before that",
                )
        super().__setattr__(name, value)
        if name in PARAMETERS:
            self._copy_in()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # untyped upstream
        self._view()  # a copy of the module has copied each tensor on its own

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  torch's signature
        with torch.inference_mode(mode=False), torch.no_grad():  # buffers that can be loaded later
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # untyped upstream
        self._view()
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._copy_in()  # torch may have swapped tensors instead of copying into them

    def _copy_in(self) -> None:
        """Make the padded tensors hold what the parameters hold, and be their memory."""
        for name in PARAMETERS:
            parameter, padded = getattr(self, name), getattr(self, f"padded_{name}")
            if parameter is None or padded is None:
                setattr(self, f"padded_{name}", None)
            elif address_of(parameter) != address_of(padded):
                setattr(self, f"padded_{name}", _enlarged(parameter, padded.shape))
        self._view()

    def _view(self) -> None:
        """Make the parameters views of the padded tensors, which are zero elsewhere."""
        for name in PARAMETERS:
            parameter, padded = getattr(self, name), getattr(self, f"padded_{name}")
            if parameter is not None and padded is not None:
                _cut(padded, parameter.shape)
                parameter.data = _part(padded, parameter.shape)


def pad(model: nn.Module, choices: Mapping[Group, Padding]) -> None:
    """Pad the weights of *model* in place, each group of *choices* as it says.

    The groups are those that `find_groups` returned for this model. What was there before is freed,
    one Linear at a time. When it fails, nothing is padded.

    Raises:
        SettingsError: the model is in training mode or padded already, or a choice does not fit it.
    """
    if model.training:
        raise SettingsError(
            "a model in training mode cannot be padded", "call model.eval(), and pad for inference"
        )
    if any(isinstance(module, PaddedLinear) for module in model.modules()):
        raise SettingsError(
            "the model is padded already", "restore it first, or prepare a model only once"
        )
    for group, padding in choices.items():
        _check(model, group, padding)
    try:
        for group, padding in choices.items():
            if padding.features != group.structure.features:
                _pad_group(model, group, padding)
    except BaseException:
        restore(model)
        raise


def restore(model: nn.Module) -> None:
    """Undo every padding in *model*: plain Linears with the same parameters, contiguous again."""
    for module in model.modules():
        if not isinstance(module, PaddedLinear):
            continue
        for name in PARAMETERS:
            parameter = getattr(module, name)
            if parameter is not None:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            delattr(module, f"padded_{name}")
        del module.takes_padded, module.gives_padded, module.as_is
        module.__class__ = nn.Linear  # type: ignore[assignment]  # it was one before


def _check(model: nn.Module, group: Group, padding: Padding) -> None:
    features = padding.features
    if padding.as_is and not group.structure.differs_by_rows:
        raise SettingsError(
            f"{group}: padded, it cannot serve some numbers of rows as it is",
            "pad it for all of them or for none",
        )
    if features < group.structure.features:
        raise SettingsError(
            f"{group}: {features} features are fewer than the {group.structure.features} there are",
            "pad to more, or to as many to leave them as they are",
        )
    for name in group.names:
        linear = model.get_submodule(name)
        size = "out_features" if name in group.makers else "in_features"
        if type(linear) is not nn.Linear or getattr(linear, size) != group.structure.features:
            raise SettingsError(f"{group}: {name} is not the Linear it was", "find groups again")


def _pad_group(model: nn.Module, group: Group, padding: Padding) -> None:
    features = padding.features
    is_chain = bool(group.makers and group.takers)
    for name in group.names:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        if name in group.makers:
            size = features, linear.in_features
            _pad_linear(linear, size, gives_padded=is_chain, as_is=padding.as_is)
        else:
            _pad_linear(linear, (linear.out_features, features), takes_padded=is_chain)


def _pad_linear(
    linear: nn.Linear,
    size: tuple[int, int],
    *,
    takes_padded: bool = False,
    gives_padded: bool = False,
    as_is: Sequence[Dim] = (),
) -> None:
    weight = _enlarged(linear.weight, size)
    bias = None if linear.bias is None else _enlarged(linear.bias, size[:1])
    linear.__class__ = PaddedLinear
    assert isinstance(linear, PaddedLinear)
    linear.takes_padded, linear.gives_padded = takes_padded, gives_padded
    linear.as_is = tuple((rows.low, rows.high) for rows in as_is)
    linear.register_buffer("padded_weight", weight, persistent=False)
    linear.register_buffer("padded_bias", bias, persistent=False)
    linear._view()  # noqa: SLF001  the class is of this module


def _enlarged(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return *tensor* in the corner of a new one of *size*, which is zero elsewhere."""
    with torch.inference_mode(mode=False), torch.no_grad():
        larger = torch.zeros(size, dtype=tensor.dtype, device=tensor.device)
        _part(larger, tensor.shape).copy_(tensor)
    return larger


def _part(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return tensor[tuple(slice(length) for length in size)]


def _cut(tensor: torch.Tensor, size: Sequence[int]) -> None:
    """Make *tensor* zero outside of its corner of *size*."""
    with torch.no_grad():
        for dim, length in enumerate(size):
            tensor.narrow(dim, length, tensor.shape[dim] - length).zero_()
