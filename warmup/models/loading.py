"""`load_model` and `make_inputs`: the user's model, and the inputs of one bucket for it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.buckets.bucket import Bucket, InputSpec
from warmup.core.dtypes import ITEM_BYTES, torch_name
from warmup.core.errors import ModelError, SettingsError, WarmupError
from warmup.models.fake_model import FakeModel, RejectedCallError, fake_instance
from warmup.models.model_file import (
    MODEL_NAME,
    ModelFile,
    cause_of,
    instantiate,
    needed_arguments,
    open_target,
)
from warmup.models.model_target import parse_target

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, torch_name(name)) for name in ITEM_BYTES}
# Names that people use beside the short ones: torch's, and those of other libraries.
_OTHER_NAMES: Mapping[str, torch.dtype] = {
    **{str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()},
    **{f"fp{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{name: getattr(torch, name) for name in ("half", "float", "double", "long")},
    "int": torch.int32,
}
_INPUTS_FUNCTION = "example_inputs"
_STAND_IN_SIZE: Final = 16  # of each dim, where a model is chosen before any bucket is known


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode, the ``example_inputs`` of its file if any, and a name for its table.

    ``chosen`` says why it is this model where a file has several and none was named, else empty.
    With ``has_siblings`` the file defines other classes, to which ``example_inputs`` may belong.
    ``assumed`` is what was taken because nobody named it, and how to name something else, and
    ``inputs_assumed`` the same of the inputs, for where nobody names any.
    """

    module: nn.Module
    example_inputs: Callable[..., Any] | None
    name: str
    chosen: str = ""
    has_siblings: bool = False
    assumed: tuple[str, str] | None = None
    inputs_assumed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one forward call, and the bucket that they were made for, if any."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bucket: Bucket | None = None

    def leaves(self) -> list[Any]:
        """Return what the arguments hold at any depth, in torch's order."""
        return torch.utils._pytree.tree_leaves((self.args, self.kwargs))  # noqa: SLF001  torch's own tree walk has no public name


def parse_dtype(text: str, source: str) -> torch.dtype:
    """Return the dtype called *text*: ``bf16``, ``bfloat16``, ``torch.bfloat16`` or ``fp16``.

    Raises:
        SettingsError: no dtype has that name; *source* is the option named in the message.
    """
    name = text.removeprefix("torch.")
    dtype = DTYPES.get(name) or _OTHER_NAMES.get(name)
    if dtype is None:
        raise SettingsError(f"{source}: {text!r} is not a dtype", f"use one of {', '.join(DTYPES)}")
    return dtype


def parse_cast(text: str | None) -> torch.dtype | None:
    """Return the dtype that ``--dtype`` casts floating tensors to; None without *text*.

    Raises:
        SettingsError: *text* is no floating dtype.
    """
    if text is None:
        return None
    dtype = parse_dtype(text, "--dtype")
    if not dtype.is_floating_point:
        floating = [name for name, each in DTYPES.items() if each.is_floating_point]
        raise SettingsError(
            f"--dtype: parameters cannot be cast to {text!r}", f"use one of {', '.join(floating)}"
        )
    return dtype


def load_model(target: str) -> LoadedModel:
    """Return the model named ``FILE.py``, ``FILE.py:NAME`` or ``package.module:NAME``.

    NAME is an `nn.Module` class whose arguments have defaults, an instance, or a function that
    returns a module. Without NAME it is the value called ``model``, else the only class, else the
    only class that takes the file's ``example_inputs``. The file is imported, so its ``__main__``
    block does not run. A JSON object behind the text has arguments for a class or a function.
    ``hf:FOLDER`` and ``hf-random:CONFIG.json`` are models of the transformers library; see
    `warmup.models.pretrained`.

    Raises:
        ModelError: there is no such file, module or name, NAME gives no model, or without NAME the
            file defines several models.
    """
    asked = parse_target(target)
    if asked.is_pretrained:
        from warmup.models.pretrained import load_pretrained

        own = load_pretrained(asked)
        made = own.module, own.example_inputs, own.name
        return LoadedModel(*made, assumed=own.assumed, inputs_assumed=own.inputs_assumed)
    file, name = open_target(asked.place)
    definition, reason = (file.definition(name), "") if name else _choose(file, asked.arguments)
    module = instantiate(definition, asked.place, asked.arguments)
    inputs = getattr(file.namespace, _INPUTS_FUNCTION, None)
    path = Path(file.path)
    stem = path.stem if path.suffix == ".py" else file.path.rsplit(".", 1)[-1]
    label = stem if name.lower() in ("", stem.lower()) else f"{stem}.{name}"
    chosen = f"{type(module).__name__}, {reason}" if reason else ""
    function = inputs if callable(inputs) else None
    return LoadedModel(module.eval(), function, label, chosen, len(file.classes()) > 1)


def make_inputs(
    model: LoadedModel,
    specs: Sequence[InputSpec],
    bucket: Bucket,
    device: torch.device,
    dtype: torch.dtype | None,
) -> Inputs:
    """Return the inputs of *bucket* on *device*; floating tensors are cast to *dtype* if given.

    With *specs* the values are random: normal, or small integers. Without, the model's
    ``example_inputs`` is called with the sizes of the dims that it names.

    Raises:
        ModelError: there are neither specs nor ``example_inputs``, or that function failed.
        SettingsError: a spec names an argument that forward does not have, or a dim without a size.
    """
    if specs:
        inputs = Inputs((), _from_specs(model, specs, bucket, dtype))
    elif model.example_inputs is not None:
        inputs = _from_function(model.example_inputs, bucket)
    else:
        raise ModelError(
            "there are no inputs for the model",
            f'define {_INPUTS_FUNCTION}(seqlen) beside it or give --input "x=[seqlen,1280]:bf16"',
        )
    return replace(_moved(inputs, device, dtype), bucket=bucket)


def _moved(inputs: Inputs, device: torch.device, dtype: torch.dtype | None) -> Inputs:
    """Return *inputs* on *device*, floating tensors cast to *dtype* if given."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        cast = dtype if dtype is not None and leaf.is_floating_point() else leaf.dtype
        return leaf.to(device=device, dtype=cast)

    args, kwargs = torch.utils._pytree.tree_map(move, (inputs.args, inputs.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return Inputs(args, kwargs)


def _choose(file: ModelFile, arguments: Collection[str] = ()) -> tuple[Any, str]:
    """Return the definition of the model in *file*, which names none, and why it was chosen.

    The reason is empty where there was no choice. *arguments* will be given to make the model.

    Raises:
        ModelError: several models are defined, and nothing says which is meant; or none is.
    """
    classes, instances, name = file.classes(), file.instances(), Path(file.path).name
    if (own := file.own_model(arguments)) is not None:
        return own, f"called {MODEL_NAME!r} in {name}" if len(classes) > 1 else ""
    if len(classes) == 1:
        (only,) = classes.values()
        is_instance_meant = needed_arguments(only, arguments) and len(instances) == 1
        return (next(iter(instances.values())) if is_instance_meant else only), ""
    if not classes and len(instances) == 1:
        return next(iter(instances.values())), ""
    fitting = []
    if callable(function := getattr(file.namespace, _INPUTS_FUNCTION, None)):
        sizes = tuple((name, _STAND_IN_SIZE) for name in needed_arguments(function))
        fitting = [
            name for name, value in classes.items() if _takes(value, function, Bucket(sizes))
        ]
        if len(fitting) == 1:
            return classes[fitting[0]], f"the only class in {name} that takes {_INPUTS_FUNCTION}"
    several = f"; {_INPUTS_FUNCTION} fits {', '.join(fitting)}" if fitting else ""
    raise ModelError(
        f"--model {file.target}: the file defines "
        f"{', '.join(file.names()) or 'no nn.Module class'}{several}",
        f"name the model: --model {file.target}:NAME, or call it {MODEL_NAME!r} in the file",
    )


def _takes(definition: type[nn.Module], function: Callable[..., Any], bucket: Bucket) -> bool:
    """Whether a *definition* made without arguments accepts what *function* returns."""
    try:
        model = fake_instance(definition)
    except Exception:  # noqa: BLE001  the user's class may raise anything: it is not the one then
        return False
    return accepts_example(model, function, bucket, torch.device("cpu"), None)


def accepts_example(
    model: FakeModel,
    function: Callable[..., Any],
    bucket: Bucket,
    device: torch.device,
    dtype: torch.dtype | None,
) -> bool:
    """Whether *model* accepts on fake tensors what *function* returns for the sizes of *bucket*.

    The inputs are moved to *device*, floating ones cast to *dtype* if given. Where they cannot be
    fake, as sparse and quantized tensors, it is whether forward has parameters for them.
    """

    def make_arguments() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        inputs = _moved(_from_function(function, bucket), device, dtype)
        return inputs.args, inputs.kwargs

    try:
        model.call(make_arguments)
    except RejectedCallError:
        return False
    except Exception:  # noqa: BLE001  the user's code may raise anything
        with contextlib.suppress(Exception):  # it is not accepted then
            inputs = _from_function(function, bucket)
            inspect.signature(model.make().forward).bind(*inputs.args, **inputs.kwargs)
            return True
        return False
    return True


def forward_parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of forward; none where Python does not know them, as of a script."""
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return {}


def check_names(module: nn.Module, specs: Sequence[InputSpec]) -> None:
    """Check that forward takes every argument that *specs* name.

    Raises:
        SettingsError: it does not take one of them.
    """
    parameters = forward_parameters(module)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for spec in specs:
        if parameters and spec.name not in parameters:
            raise SettingsError(
                f"--input {spec.name}: forward takes {', '.join(parameters)}", "name one of these"
            )


def _from_specs(
    model: LoadedModel, specs: Sequence[InputSpec], bucket: Bucket, dtype: torch.dtype | None
) -> dict[str, Any]:
    check_names(model.module, specs)
    own = next((p.dtype for p in model.module.parameters() if p.is_floating_point()), torch.float32)
    inputs: dict[str, Any] = {}
    for spec in specs:
        wanted = parse_dtype(spec.dtype, f"--input {spec.name}") if spec.dtype else dtype or own
        shape = spec.shape(bucket)
        if wanted.is_floating_point:
            inputs[spec.name] = torch.randn(shape).to(wanted)
        elif wanted is torch.bool:
            inputs[spec.name] = torch.ones(shape, dtype=wanted)
        else:
            inputs[spec.name] = torch.randint(0, spec.below, shape, dtype=wanted)
    return inputs


def _from_function(function: Callable[..., Any], bucket: Bucket) -> Inputs:
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    sizes = {name: size for name, size in bucket.sizes if name in parameters or open_ended}
    unbound = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.name not in sizes and p.kind is not p.VAR_KEYWORD
    ]
    if unbound:
        raise SettingsError(
            f"{_INPUTS_FUNCTION}: no size is bound to {', '.join(unbound)}",
            f'bind one with --dims "{unbound[0]}=1,8" (--seqlens binds seqlen)',
        )
    try:
        inputs = function(**sizes)
    except WarmupError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise ModelError(f"{_INPUTS_FUNCTION}({bucket}) failed ({cause_of(error)})") from error
    if isinstance(inputs, Mapping):
        return Inputs((), dict(inputs))
    return Inputs(inputs if isinstance(inputs, tuple) else (inputs,), {})
