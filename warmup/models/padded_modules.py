"""`pad` and `restore`: Linears padded with zeros in place, and back.

Padding changes the class of an existing Linear to `PaddedLinear` instead of replacing the module:
references to the Linear, its names and `isinstance` stay valid, and undoing needs no parent. Its
``weight`` and ``bias`` stay the same parameters with their own sizes, now views of the padded
tensors, which are buffers outside of the state dict. So code that reads sizes, or loads, ties or
changes a parameter in place works as before, and the weight is in memory once.

The class follows everything that gives a parameter new memory: moves and casts, deepcopy, pickle,
assignments. Only an assignment to ``parameter.data`` from outside is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from warmup.core.errors import SettingsError
from warmup.keys.gemm import Dim
from warmup.keys.weight import Padding
from warmup.models.weight_groups import PARAMETERS, Group, address_of


class PaddedLinear(nn.Linear):
    """A Linear that computes with more features than its parameters have; the added ones are zero.

    With ``takes_padded`` its input is padded already, else `forward` pads the input where the
    weight needs it. With ``returns_padded`` its output stays padded, else `forward` cuts it to
    size. ``as_is`` has ranges of rows, lowest and highest (None: no limit), for which the unpadded
    parameters are used.
    """

    padded_weight: torch.Tensor
    padded_bias: torch.Tensor | None
    takes_padded: bool
    returns_padded: bool
    as_is: tuple[tuple[int, int | None], ...]

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as nn.Linear names it
        """Return the output of the padded Linear: padded with ``returns_padded``, else cut."""
        for low, high in self.as_is:  # decided once for a compiled graph, by its sizes
            rows = input.numel() // self.in_features
            if rows >= low and (high is None or rows <= high):
                return super().forward(input)
        padded_out, padded_in = self.padded_weight.shape
        if padded_in != self.in_features and not self.takes_padded:
            input = nn.functional.pad(input, (0, padded_in - self.in_features))  # noqa: A001
        output = nn.functional.linear(input, self.padded_weight, self.padded_bias)
        if padded_out == self.out_features or self.returns_padded:
            return output
        return output[..., : self.out_features]

    def extra_repr(self) -> str:
        """Return the sizes of the parameters, and of the padded weight."""
        padded_out, padded_in = self.padded_weight.shape
        return f"{super().extra_repr()}, padded to {padded_in} -> {padded_out}"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARAMETERS and isinstance(value, torch.Tensor):
            old = getattr(self, name)
            if old is None or old.shape != value.shape:
                raise SettingsError(
                    f"the {name} of a padded Linear cannot get the size {tuple(value.shape)}",
                    "restore the model with warmup.models.padded_modules.restore first",
                )
        super().__setattr__(name, value)
        if name in PARAMETERS:
            self._copy_parameters()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # untyped upstream
        self._make_views()  # copying a module copies each of its tensors apart

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  torch's signature
        # A state dict cannot be loaded into tensors that were made in inference mode.
        with torch.inference_mode(mode=False), torch.no_grad():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # untyped upstream
        self._make_views()
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._copy_parameters()  # torch may have swapped tensors instead of copying into them

    def _copy_parameters(self) -> None:
        """Copy parameters with memory of their own into padded tensors, and make them views."""
        for name in PARAMETERS:
            parameter, padded = getattr(self, name), getattr(self, f"padded_{name}")
            if parameter is None or padded is None:
                setattr(self, f"padded_{name}", None)
            elif address_of(parameter) != address_of(padded):
                setattr(self, f"padded_{name}", _enlarged(parameter, padded.shape))
        self._make_views()

    def _make_views(self) -> None:
        """Make the parameters views of the padded tensors, and zero the padding."""
        for name in PARAMETERS:
            parameter, padded = getattr(self, name), getattr(self, f"padded_{name}")
            if parameter is not None and padded is not None:
                _zero_padding(padded, parameter.shape)
                parameter.data = _corner(padded, parameter.shape)


def pad(model: nn.Module, choices: Mapping[Group, Padding]) -> None:
    """Pad the weights of *model* in place, each group of *choices* to its `Padding`.

    The groups are those that `find_groups` returned for this model. The unpadded weights are freed
    one Linear at a time. After an error nothing is padded.

    Raises:
        SettingsError: the model is in training mode or padded already, or a choice does not fit the
            model.
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
    """Undo all padding in *model*: its Linears are plain, with the same contiguous parameters."""
    for module in model.modules():
        if not isinstance(module, PaddedLinear):
            continue
        for name in PARAMETERS:
            parameter = getattr(module, name)
            if parameter is not None:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            delattr(module, f"padded_{name}")
        del module.takes_padded, module.returns_padded, module.as_is
        module.__class__ = nn.Linear  # type: ignore[assignment]  # its class before padding


def _check(model: nn.Module, group: Group, padding: Padding) -> None:
    features = padding.features
    if padding.as_is and not group.structure.differs_by_rows:
        raise SettingsError(
            f"{group}: a group of this form is padded for all numbers of rows or for none",
            "give no rows that are served unpadded",
        )
    if features < group.structure.features:
        raise SettingsError(
            f"{group}: {features} features are fewer than the model's {group.structure.features}",
            "pad to more, or name the model's own number to pad nothing",
        )
    for name in group.names:
        linear = model.get_submodule(name)
        size = "out_features" if name in group.producers else "in_features"
        if type(linear) is not nn.Linear or getattr(linear, size) != group.structure.features:
            raise SettingsError(
                f"{group}: {name} has changed since the groups were found", "find groups again"
            )


def _pad_group(model: nn.Module, group: Group, padding: Padding) -> None:
    features = padding.features
    is_chain = bool(group.producers and group.consumers)
    for name in group.names:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        if name in group.producers:
            size = features, linear.in_features
            _pad_linear(linear, size, returns_padded=is_chain, as_is=padding.as_is)
        else:
            _pad_linear(linear, (linear.out_features, features), takes_padded=is_chain)


def _pad_linear(
    linear: nn.Linear,
    size: tuple[int, int],
    *,
    takes_padded: bool = False,
    returns_padded: bool = False,
    as_is: Sequence[Dim] = (),
) -> None:
    weight = _enlarged(linear.weight, size)
    bias = None if linear.bias is None else _enlarged(linear.bias, size[:1])
    linear.__class__ = PaddedLinear
    assert isinstance(linear, PaddedLinear)
    linear.takes_padded, linear.returns_padded = takes_padded, returns_padded
    linear.as_is = tuple((rows.low, rows.high) for rows in as_is)
    linear.register_buffer("padded_weight", weight, persistent=False)
    linear.register_buffer("padded_bias", bias, persistent=False)
    linear._make_views()  # noqa: SLF001  a class of this module


def _enlarged(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return *tensor* in the corner of a new one of *size*, which is zero elsewhere."""
    with torch.inference_mode(mode=False), torch.no_grad():
        larger = torch.zeros(size, dtype=tensor.dtype, device=tensor.device)
        _corner(larger, tensor.shape).copy_(tensor)
    return larger


def _corner(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return tensor[tuple(slice(length) for length in size)]


def _zero_padding(tensor: torch.Tensor, size: Sequence[int]) -> None:
    """Set *tensor* to zero outside of its corner of *size*."""
    with torch.no_grad():
        for dim, length in enumerate(size):
            tensor.narrow(dim, length, tensor.shape[dim] - length).zero_()
