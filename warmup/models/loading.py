"""`load_model` and `make_inputs`: the user's model, and the inputs of one bucket for it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from warmup.core.buckets import Bucket, InputSpec
from warmup.core.errors import ModelError, SettingsError, WarmupError
from warmup.core.roofline import NAMED_DTYPES, torch_name
from warmup.core.text import first_line
from warmup.models.fake_model import FakeModel, RejectedCallError, fake_instance
from warmup.models.model_target import LoadedModel, parse_target

MODEL_NAME: Final = "model"  # the name in a file that is its model, whatever else there is
_CALL = re.compile(r"[A-Za-z_]\w*\(.*\)")
_HOW_TO_PAGE: Final = "docs/how-to/name-models-and-inputs.md"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An imported file, or module, and the text after ``--model`` that named it."""

    target: str
    path: str
    namespace: ModuleType

    def definition(self, name: str) -> Any:
        if not hasattr(self.namespace, name):
            raise ModelError(
                f"--model {self.target}: {self.path} has no {name!r}",
                f"it defines {', '.join(self.names()) or 'no nn.Module class'}",
            )
        return getattr(self.namespace, name)

    def classes(self) -> Mapping[str, type[nn.Module]]:
        return {
            name: value
            for name, value in vars(self.namespace).items()
            if isinstance(value, type)
            and issubclass(value, nn.Module)
            and value.__module__ == self.namespace.__name__
        }

    def instances(self) -> Mapping[str, nn.Module]:
        first: dict[int, tuple[str, nn.Module]] = {}
        for name, value in vars(self.namespace).items():
            if isinstance(value, nn.Module):
                first.setdefault(id(getattr(value, "_orig_mod", value)), (name, value))
        return dict(first.values())

    def names(self) -> list[str]:
        return [*self.classes(), *self.instances()]


def open_target(target: str) -> tuple[ModelFile, str]:
    """Import what *target* names, from its folder; return it, and the name behind the colon."""
    path, name = _split(target)
    return ModelFile(target, path, _import(path, target)), name


def _make(definition: Any, target: str, arguments: Mapping[str, Any]) -> nn.Module:
    is_made = isinstance(definition, nn.Module)
    if is_made and arguments:
        raise ModelError(
            f"--model {target}: a module that exists takes no arguments ({', '.join(arguments)})",
            "name the class or a function that makes it",
        )
    module = definition if is_made else _call(definition, target, arguments)
    if not hasattr(module, "_orig_mod"):
        return module
    from warmup.inductor.adapter import uncompiled  # loads the compiler

    return uncompiled(module)


def _call(definition: Any, target: str, arguments: Mapping[str, Any]) -> nn.Module:
    if not callable(definition):
        raise ModelError(f"--model {target}: not a class, an instance or a function")
    kind = "class" if isinstance(definition, type) else "function"
    known = inspect.signature(definition).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in known.values()) and (
        unknown := [name for name in arguments if name not in known]
    ):
        raise ModelError(
            f"--model {target}: the {kind} has no argument {', '.join(unknown)}",
            f"it takes {', '.join(known) or 'none'}",
        )
    if needed := needed_arguments(definition, arguments):
        own = getattr(definition, "__name__", kind)
        values = ", ".join(f"{name}=..." for name in needed)
        raise ModelError(
            f"--model {target}: the {kind} {own} needs arguments ({', '.join(needed)})",
            f"{_wrapping(_split(target)[0], f'{own}({values})')}, or write --model "
            f"'{target}{{\"{needed[0]}\": ...}}'",
        )
    try:
        module = definition(**arguments)
    except Exception as error:  # the user's model may raise anything
        raise ModelError(
            f"--model {target}: making the model failed ({cause_of(error)})"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"--model {target}: the {kind} returns {type(module).__name__}, no nn.Module"
        )
    return module


def needed_arguments(definition: Callable[..., Any], given: Collection[str] = ()) -> list[str]:
    return [
        parameter.name
        for parameter in inspect.signature(definition).parameters.values()
        if parameter.default is parameter.empty
        and parameter.name not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def cause_of(error: BaseException) -> str:
    """Return the first cause of *error* in a line, and where the user's code was by then."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines() or [""]
    text = first_line(error)
    if len(lines) > 1 and lines[-1].strip():
        text += f" ... {lines[-1].strip()}"
    if isinstance(error, SyntaxError):
        return f"{text.partition(' (')[0]}, {error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not _is_installed(Path(frame.filename))
    ]
    return f"{text}, {frames[-1].filename}:{frames[-1].lineno}" if frames else text


def _is_installed(path: Path) -> bool:
    own, python = Path(__file__).resolve().parents[1], sysconfig.get_path("stdlib")
    packages = {"site-packages", "dist-packages"} & {*path.parts}
    return bool(packages) or path.is_relative_to(own) or path.is_relative_to(python)


def _split(target: str) -> tuple[str, str]:
    path, colon, name = target.partition(".py:")
    if colon:
        path += ".py"
    elif target.endswith(".py"):
        return target, ""
    else:
        path, colon, name = target.partition(":")
    if _CALL.fullmatch(name):
        raise ModelError(f"--model {target!r} is a call, not a name", _wrapping(path, name))
    is_path = all(part.isidentifier() for part in path.split("."))
    if colon and name.isidentifier() and (path.endswith(".py") or is_path):
        return path, name
    if not colon and "/" in target and not Path(target).exists():
        raise ModelError(
            f"--model {target!r} is no file and no module; models are not downloaded",
            f"hf download {target} --local-dir DIR, then --model hf:DIR ({_HOW_TO_PAGE})",
        )
    raise ModelError(
        f"--model {target!r} names no model", "write FILE.py, FILE.py:NAME or package.module:NAME"
    )


def _wrapping(path: str, call: str) -> str:
    is_file = path.endswith(".py")
    home = "the file" if is_file else f"a file that imports {re.split('[(.]', call)[0]}"
    file = path if is_file else "FILE.py"
    return f'write "def model(): return {call}" into {home}, and give --model {file}'


def _import(path: str, target: str) -> ModuleType:
    file = Path(path).resolve()
    if path.endswith(".py") and not file.is_file():
        raise ModelError(f"--model {target}: there is no file {path}", "check the path")
    folder = str(file.parent if path.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    before, sys.argv = sys.argv, [str(file)]  # the file may read the command line at the import
    try:
        return _run_file(file) if path.endswith(".py") else importlib.import_module(path)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        raise ModelError(
            f"--model {target}: importing {path} failed ({cause_of(error)})"
        ) from error
    finally:
        sys.argv = before


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


DTYPES: Mapping[str, torch.dtype] = {n: getattr(torch, torch_name(n)) for n in NAMED_DTYPES}
Specs = Sequence[InputSpec]
Cast = torch.dtype | None  # of floating tensors, None as they are
_INPUTS_FUNCTION = "example_inputs"
_STAND_IN_SIZE: Final = 16  # of each dim, where a model is chosen before any bucket is known


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one forward call, and the bucket that they were made for, if any."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bucket: Bucket | None = None

    def leaves(self) -> list[Any]:
        """Return what the arguments hold at any depth, in torch's order."""
        return torch.utils._pytree.tree_leaves((self.args, self.kwargs))  # noqa: SLF001  torch's own tree walk has no public name

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """Return these arguments with *change* of each tensor that they hold at any depth."""
        tree = self.args, self.kwargs
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, change, tree)  # noqa: SLF001  as above
        return Inputs(args, kwargs, self.bucket)


def parse_dtype(text: str, source: str) -> torch.dtype:
    """Return the dtype called *text*, by torch or usually; *source* is the option it is for."""
    name = text.removeprefix("torch.")
    dtype = DTYPES.get(name) or getattr(torch, name.replace("fp", "float"), None)
    if dtype not in DTYPES.values():
        raise SettingsError(f"{source}: {text!r} is not a dtype", f"use one of {', '.join(DTYPES)}")
    assert isinstance(dtype, torch.dtype)
    return dtype


def parse_cast(text: str | None) -> torch.dtype | None:
    """Return the dtype of ``--dtype``, None without *text*; it has to be a floating dtype."""
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
    only class that takes the file's ``example_inputs``. A JSON object behind the text has arguments
    for a class or a function. ``hf:FOLDER`` and ``hf-random:CONFIG.json`` are models of the
    transformers library (`warmup.models.pretrained`).
    """
    asked = parse_target(target)
    if asked.is_pretrained:
        from warmup.models.pretrained import load_pretrained

        return load_pretrained(asked)
    file, name = open_target(asked.place)
    definition, reason = (file.definition(name), "") if name else _choose(file, asked.arguments)
    module = _make(definition, asked.place, asked.arguments)
    inputs = getattr(file.namespace, _INPUTS_FUNCTION, None)
    path = Path(file.path)
    stem = path.stem if path.suffix == ".py" else file.path.rsplit(".", 1)[-1]
    label = stem if name.lower() in ("", stem.lower()) else f"{stem}.{name}"
    chosen = f"{type(module).__name__}, {reason}" if reason else ""
    function = inputs if callable(inputs) else None
    return LoadedModel(module.eval(), function, label, chosen, len(file.classes()) > 1)


def make_inputs(
    model: LoadedModel, specs: Specs, bucket: Bucket, device: torch.device, dtype: Cast
) -> Inputs:
    """Return the inputs of *bucket* on *device*; floating tensors are cast to *dtype* if given.

    With *specs* the values are random: normal, or small integers. Without, the model's
    ``example_inputs`` is called with the sizes of the dims that it names.
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


def _moved(inputs: Inputs, device: torch.device, dtype: Cast) -> Inputs:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=device, dtype=cast)

    return inputs.changed(move)


def _choose(file: ModelFile, arguments: Collection[str] = ()) -> tuple[Any, str]:
    classes, instances, name = file.classes(), file.instances(), Path(file.path).name
    own: Any = getattr(file.namespace, MODEL_NAME, None)
    is_of_file = getattr(own, "__module__", None) == file.namespace.__name__
    makes_one = is_of_file and callable(own) and not needed_arguments(own, arguments)
    if isinstance(own, nn.Module) or makes_one:
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
            name
            for name, value in classes.items()
            if accepts_example(partial(fake_instance, value), function, Bucket(sizes))
        ]
        if len(fitting) == 1:
            return classes[fitting[0]], f"the only class in {name} that takes {_INPUTS_FUNCTION}"
    several = f"; {_INPUTS_FUNCTION} fits {', '.join(fitting)}" if fitting else ""
    raise ModelError(
        f"--model {file.target}: the file defines "
        f"{', '.join(file.names()) or 'no nn.Module class'}{several}",
        f"name the model: --model {file.target}:NAME, or call it {MODEL_NAME!r} in the file",
    )


def accepts_example(
    make_fake: Callable[[], FakeModel],
    function: Callable[..., Any],
    bucket: Bucket,
    device: torch.device | None = None,
    dtype: Cast = None,
) -> bool:
    """Whether a fake model, or else its signature, accepts what *function* returns for *bucket*."""
    try:
        model = make_fake()
    except Exception:  # noqa: BLE001  the user's class may raise anything: it is not the one then
        return False

    def make_arguments() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        inputs = _moved(_from_function(function, bucket), device or torch.device("cpu"), dtype)
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


def floating_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of the first floating-point parameter of *module*; None without one."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), None)


def forward_parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return {}


def check_names(module: nn.Module, specs: Specs) -> None:
    parameters = forward_parameters(module)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for spec in specs:
        if parameters and spec.name not in parameters:
            raise SettingsError(
                f"--input {spec.name}: forward takes {', '.join(parameters)}", "name one of these"
            )


def _from_specs(model: LoadedModel, specs: Specs, bucket: Bucket, dtype: Cast) -> dict[str, Any]:
    check_names(model.module, specs)
    own = floating_dtype(model.module) or torch.float32
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
    if unbound := [name for name in needed_arguments(function) if name not in sizes]:
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
