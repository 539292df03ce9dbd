"""`load_model` and `make_inputs`: the user's model, and the inputs of one bucket for it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from warmup.buckets.bucket import Bucket, InputSpec
from warmup.core.dtypes import ITEM_BYTES, torch_name
from warmup.core.errors import ModelError, SettingsError

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, torch_name(name)) for name in ITEM_BYTES}
_LONG_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
_OTHER_NAMES = {"fp16": "f16", "half": "f16", "fp32": "f32", "float": "f32", "fp64": "f64"}
_INPUTS_FUNCTION = "example_inputs"
_TOKEN_RANGE = 128


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode, the ``example_inputs`` of its file if any, and a name for its table."""

    module: nn.Module
    example_inputs: Callable[..., Any] | None
    name: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one forward call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parse_dtype(text: str, source: str) -> torch.dtype:
    """Return the dtype called *text*: ``bf16`` or ``bfloat16``.

    Raises:
        SettingsError: no dtype has that name; *source* is the option named in the message.
    """
    dtype = DTYPES.get(text) or _LONG_NAMES.get(text)
    if dtype is None:
        meant = _OTHER_NAMES.get(text.lower())
        remedy = f"write {meant}" if meant else f"use one of {', '.join(DTYPES)}"
        raise SettingsError(f"{source}: {text!r} is not a dtype", remedy)
    return dtype


def load_model(target: str) -> LoadedModel:
    """Return the model named ``FILE.py``, ``FILE.py:NAME`` or ``package.module:NAME``.

    NAME is an `nn.Module` class whose arguments have defaults, an instance, or a function that
    returns a module. The file is imported, so its ``__main__`` block does not run.

    Raises:
        ModelError: there is no such file, module or name, or NAME gives no model.
    """
    path_text, name = _split_target(target)
    namespace = _import(path_text, target)
    definition = getattr(namespace, name, None) if name else _only_model(namespace, target)
    if definition is None:
        raise ModelError(
            f"--model {target}: {path_text} has no {name!r}",
            f"it defines {', '.join(_model_names(namespace)) or 'no nn.Module class'}",
        )
    module = _instantiate(definition, target)
    inputs = getattr(namespace, _INPUTS_FUNCTION, None)
    stem = Path(path_text).stem if path_text.endswith(".py") else path_text.rsplit(".", 1)[-1]
    label = stem if name.lower() in ("", stem.lower()) else f"{stem}.{name}"
    return LoadedModel(module.eval(), inputs if callable(inputs) else None, label)


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

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        cast = dtype if dtype is not None and leaf.is_floating_point() else leaf.dtype
        return leaf.to(device=device, dtype=cast)

    args, kwargs = torch.utils._pytree.tree_map(move, (inputs.args, inputs.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return Inputs(args, kwargs)


def _split_target(target: str) -> tuple[str, str]:
    path, colon, name = target.rpartition(":")
    if colon and not name.endswith(".py"):
        if not path or not name.isidentifier():
            raise ModelError(f"--model {target!r} is not FILE.py:NAME or package.module:NAME")
        return path, name
    if not target.endswith(".py"):
        raise ModelError(
            f"--model {target!r} names no model",
            "write FILE.py, FILE.py:NAME or package.module:NAME",
        )
    return target, ""


def _import(path_text: str, target: str) -> ModuleType:
    path = Path(path_text).resolve()
    if path_text.endswith(".py") and not path.is_file():
        raise ModelError(f"--model {target}: there is no file {path_text}", "check the path")
    try:
        return _run_file(path) if path_text.endswith(".py") else importlib.import_module(path_text)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"--model {target}: importing {path_text} failed ({reason})") from error


def _run_file(path: Path) -> ModuleType:
    # A script imports the modules of its own folder.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _model_names(namespace: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(namespace).items()
        if isinstance(value, type)
        and issubclass(value, nn.Module)
        and value.__module__ == namespace.__name__
    ]


def _only_model(namespace: ModuleType, target: str) -> Any:
    names = _model_names(namespace)
    if len(names) != 1:
        classes = ", ".join(names) or "no nn.Module class"
        raise ModelError(
            f"--model {target}: the file defines {classes}", f"name the model: {target}:NAME"
        )
    return getattr(namespace, names[0])


def _instantiate(definition: Any, target: str) -> nn.Module:
    if isinstance(definition, nn.Module):
        return definition
    if not callable(definition):
        raise ModelError(f"--model {target}: not a class, an instance or a function")
    kind = "class" if isinstance(definition, type) else "function"
    needed = [
        parameter.name
        for parameter in inspect.signature(definition).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ModelError(
            f"--model {target}: the {kind} needs arguments ({', '.join(needed)})",
            "give them defaults, or name a function without arguments that returns the model",
        )
    try:
        module = definition()
    except Exception as error:
        raise ModelError(f"--model {target}: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"--model {target}: the {kind} returns no nn.Module")
    return module


def _from_specs(
    model: LoadedModel, specs: Sequence[InputSpec], bucket: Bucket, dtype: torch.dtype | None
) -> dict[str, Any]:
    parameters = inspect.signature(model.module.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    own = next((p.dtype for p in model.module.parameters() if p.is_floating_point()), torch.float32)
    inputs: dict[str, Any] = {}
    for spec in specs:
        if spec.name not in parameters and not open_ended:
            raise SettingsError(
                f"--input {spec.name}: forward takes {', '.join(parameters)}", "name one of these"
            )
        wanted = parse_dtype(spec.dtype, f"--input {spec.name}") if spec.dtype else dtype or own
        shape = spec.shape(bucket)
        if wanted.is_floating_point:
            inputs[spec.name] = torch.randn(shape).to(wanted)
        elif wanted is torch.bool:
            inputs[spec.name] = torch.ones(shape, dtype=wanted)
        else:
            inputs[spec.name] = torch.randint(0, _TOKEN_RANGE, shape, dtype=wanted)
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
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{_INPUTS_FUNCTION}({bucket}) failed ({reason})") from error
    if isinstance(inputs, Mapping):
        return Inputs((), dict(inputs))
    return Inputs(inputs if isinstance(inputs, tuple) else (inputs,), {})
