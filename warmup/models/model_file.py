"""`ModelFile`: the imported file or module that ``--model`` names, and the models in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch import nn

from warmup.core.error_text import first_line
from warmup.core.errors import ModelError

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
        """Return the value called *name*.

        Raises:
            ModelError: there is none.
        """
        if not hasattr(self.namespace, name):
            raise ModelError(
                f"--model {self.target}: {self.path} has no {name!r}",
                f"it defines {', '.join(self.names()) or 'no nn.Module class'}",
            )
        return getattr(self.namespace, name)

    def classes(self) -> Mapping[str, type[nn.Module]]:
        """Return the `nn.Module` classes that are defined here, by name."""
        return {
            name: value
            for name, value in vars(self.namespace).items()
            if isinstance(value, type)
            and issubclass(value, nn.Module)
            and value.__module__ == self.namespace.__name__
        }

    def instances(self) -> Mapping[str, nn.Module]:
        """Return the modules that exist here by their first names; a compiled copy is no other."""
        first: dict[int, tuple[str, nn.Module]] = {}
        for name, value in vars(self.namespace).items():
            if isinstance(value, nn.Module):
                first.setdefault(id(getattr(value, "_orig_mod", value)), (name, value))
        return dict(first.values())

    def names(self) -> list[str]:
        """Return the names of all classes and instances."""
        return [*self.classes(), *self.instances()]

    def own_model(self, arguments: Collection[str] = ()) -> Any:
        """Return the value called ``model`` if it is or, with *arguments*, makes a model.

        None without such a value.
        """
        value = getattr(self.namespace, MODEL_NAME, None)
        is_own = getattr(value, "__module__", None) == self.namespace.__name__
        if isinstance(value, nn.Module) or (
            is_own and callable(value) and not needed_arguments(value, arguments)
        ):
            return value
        return None


def open_target(target: str) -> tuple[ModelFile, str]:
    """Import what *target* names; return it, and the name behind the colon, empty without one.

    The folder of a file, or for a module the working directory, is searched for other imports. The
    ``__main__`` block does not run, and ``sys.argv`` has no arguments meanwhile.

    Raises:
        ModelError: *target* has another form, there is no such file or module, or it raised.
    """
    path, name = _split(target)
    return ModelFile(target, path, _import(path, target)), name


def instantiate(
    definition: Any, target: str, arguments: Mapping[str, Any] | None = None
) -> nn.Module:
    """Return the module that *definition* is or makes: an instance, a class or a function.

    A class or a function is called with *arguments*. A module that the file compiled is returned
    uncompiled.

    Raises:
        ModelError: it makes none with these arguments, or raised.
    """
    if isinstance(definition, nn.Module) and arguments:
        raise ModelError(
            f"--model {target}: a module that exists takes no arguments ({', '.join(arguments)})",
            "name the class or a function that makes it",
        )
    is_made = isinstance(definition, nn.Module)
    module = definition if is_made else _make(definition, target, arguments or {})
    if not hasattr(module, "_orig_mod"):
        return module
    from warmup.inductor.adapter import uncompiled  # loads the compiler

    return uncompiled(module)


def _make(definition: Any, target: str, arguments: Mapping[str, Any]) -> nn.Module:
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
            f"{_wrapping(_split(target)[0], f'{own}({values})')}, or --model-args "
            f"'{{\"{needed[0]}\": ...}}'",
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
    """Return the arguments of *definition* that have no default and are not *given*."""
    return [
        parameter.name
        for parameter in inspect.signature(definition).parameters.values()
        if parameter.default is parameter.empty
        and parameter.name not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def cause_of(error: BaseException) -> str:
    """Return what raised *error*, its first cause, in a line: type, text, file and line number.

    The file is the last one of the traceback that belongs to no installed package.
    """
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
    """Whether *path* is a module of warmup, of an installed package or of Python."""
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
    """Return how to make *call*, of a name in *path*, the model of a file."""
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
    try:
        with _no_arguments(str(file)):
            return _run_file(file) if path.endswith(".py") else importlib.import_module(path)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        raise ModelError(
            f"--model {target}: importing {path} failed ({cause_of(error)})"
        ) from error


@contextlib.contextmanager
def _no_arguments(path: str) -> Iterator[None]:
    """Hide the command line of warmup from a file that reads its own at the import."""
    before, sys.argv = sys.argv, [path]
    try:
        yield
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
