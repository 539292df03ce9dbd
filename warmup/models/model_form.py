"""`form_of`: the names, shapes, strides, dtypes and devices of a model's tensors, and its modules.

What an artifact that is compiled ahead of time takes for granted of a model, without values.
"""

from __future__ import annotations

from itertools import chain

from torch import nn

from warmup.core.artifact_form import ModelForm
from warmup.core.dtypes import dtype_name


def form_of(model: nn.Module) -> ModelForm:
    """Return the form of *model*: its parameters and buffers, and its modules with their hooks.

    A tensor that has several names is described under the first, and named under the others.
    """
    first: dict[int, str] = {}
    tensors: dict[str, str] = {}
    named = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    for name, tensor in named:
        owner = first.setdefault(id(tensor), name)
        if owner != name:
            tensors[name] = f"the tensor of {owner}"
            continue
        size, strides = (",".join(map(str, each)) for each in (tensor.shape, tensor.stride()))
        kind = "" if type(tensor) in (nn.Parameter, nn.Buffer) else f" {type(tensor).__name__}"
        tensors[name] = (
            f"{dtype_name(tensor.dtype)}[{size}] strides {strides or 'none'} on {tensor.device}"
            f"{kind if kind != ' Tensor' else ''}"
        )
    modules = {
        name: f"{type(module).__module__}.{type(module).__qualname__}{_hooks(module)}"
        for name, module in model.named_modules(remove_duplicate=False)
    }
    return ModelForm(tensors, modules)


def _hooks(module: nn.Module) -> str:
    count = len(module._forward_hooks) + len(module._forward_pre_hooks)  # noqa: SLF001  no public name
    return f" with {count} hooks" if count else ""
