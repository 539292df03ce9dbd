"""The backends of a layer: eager, inductor with several sets of options, a table, and libraries.

Whatever else a layer has as a method is a backend too.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from warmup.bench.layers.layer import EAGER, OpenLayer, Operator
from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.method import OptionValue
from warmup.inductor.artifacts import with_own_code
from warmup.inductor.options import option_names

COMPILED: Final = "compiled"
CUSTOM: Final = "custom"
TABLE: Final = "table"
TRITON_BACKEND: Final = "triton"
# Backend -> its distribution, and the module that its import is tried with.
LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    TRITON_BACKEND: ("triton", "triton"),
    "liger": ("liger-kernel", "liger_kernel.transformers.functional"),
    "quack": ("quack-kernels", "quack.rmsnorm"),
    "helion": ("helion", "warmup.bench.layers.helion"),
}
# Inductor's options for kernels that move memory: more launch configs, and each of them refined.
CUSTOM_OPTIONS: Final[Mapping[str, OptionValue]] = {
    "max_autotune_pointwise": True,
    "coordinate_descent_tuning": True,
}
_CUSTOM_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,15}")
_NEAR_NAMES: Final = 3  # spellings that an error offers
_OPTION_WORDS: Final[Mapping[str, OptionValue]] = {"true": True, "false": False, "none": None}

CustomOptions = Mapping[str, Mapping[str, OptionValue]]


def parse_customs(texts: Sequence[str]) -> CustomOptions:
    """Return the options of each of *texts* by name: ``wide:coordinate_descent_tuning=true``.

    Without *texts* there is `CUSTOM`, with `CUSTOM_OPTIONS`.

    Raises:
        SettingsError: a text has another form, a name is taken, or inductor has no such option.
    """
    if not texts:
        return {CUSTOM: CUSTOM_OPTIONS}
    found: dict[str, dict[str, OptionValue]] = {}
    for text in texts:
        name, colon, words = text.partition(":")
        pairs = [word.partition("=") for word in words.split(",")]
        if (
            not _CUSTOM_NAME.fullmatch(name)
            or not colon
            or not all(key and eq for key, eq, _ in pairs)
        ):
            raise SettingsError(
                f"--custom {text!r} has another form",
                "write --custom NAME:option=value,option=value; a name has up to 16 of a-z0-9_-",
            )
        if name in found or name in {EAGER, COMPILED, TABLE, *LIBRARIES}:
            raise SettingsError(f"--custom: the name {name!r} is taken", "give it another name")
        found[name] = {key: _value(value) for key, _, value in pairs}
        _check_options(name, found[name])
    return found


def names_of(layers: Sequence[OpenLayer], customs: CustomOptions) -> tuple[str, ...]:
    """Return the backends of *layers*, in the order of the report."""
    own = dict.fromkeys(name for layer in layers for name in layer.backends)
    if taken := {COMPILED, TABLE, *customs} & own.keys():
        raise SettingsError(
            f"--layer: the method {min(taken)!r} has the name of a backend", "name it differently"
        )
    known = (name for name in LIBRARIES if name in own)
    return tuple(dict.fromkeys((EAGER, COMPILED, *customs, TABLE, *known, *own)))


def operator_of(backend: str, layer: OpenLayer, customs: CustomOptions) -> Operator | None:
    """Return the operator of *layer* on *backend*, compiled at its first call; None without one.

    Each compiled operator has a code object of its own, and so its own limit of recompiles.
    """
    if backend == COMPILED:
        return torch.compile(with_own_code(layer.eager, backend), dynamic=False)
    if backend in customs:
        own, options = with_own_code(layer.eager, backend), _untyped(customs[backend])
        return torch.compile(own, dynamic=False, options=options)
    return layer.backends.get(backend)


def missing(backend: str, device: torch.device) -> str | None:
    """Return why *backend* cannot be used on *device*, None when it can."""
    if backend not in LIBRARIES:
        return None
    if device.type == "cpu":
        return "its kernels are for GPUs"
    try:
        importlib.import_module(LIBRARIES[backend][1])
    except Exception as error:  # noqa: BLE001  a library may raise any error when imported
        text = " ".join(str(error).split())
        return f"cannot be imported: {type(error).__name__}: {text}"
    return None


def versions() -> dict[str, str]:
    """Return the version of each installed library, by backend."""
    installed: dict[str, str] = {}
    for backend, (distribution, _) in LIBRARIES.items():
        try:
            installed[backend] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _check_options(name: str, options: Mapping[str, OptionValue]) -> None:
    """Check that inductor has each of *options*, the backend *name*, with a value of that type.

    Raises:
        SettingsError: an option is unknown, or its value is of another type.
    """
    known = option_names()
    for option in options:
        if option.replace("-", "_") not in known:  # as torch.compile reads an option
            near = difflib.get_close_matches(option, known, n=_NEAR_NAMES)
            raise SettingsError(
                f"--custom {name}: inductor has no option {shown(option)!r}",
                f"use {' or '.join(near)}" if near else "see torch._inductor.list_options()",
            )
    try:
        torch.compile(_nothing, options=_untyped(options))  # compiles at its first call only
    except RuntimeError as error:
        raise SettingsError(
            f"--custom {name}: {shown(error)}", "give the option a value of its type"
        ) from error


def _value(text: str) -> OptionValue:
    if text.lower() in _OPTION_WORDS:
        return _OPTION_WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _untyped(options: Mapping[str, OptionValue]) -> dict[str, Any]:
    """Return *options* as torch.compile takes them: its annotation lacks floats and None."""
    return dict(options)


def _nothing() -> None:
    """Take nothing and return nothing: the options of a compile are checked with it."""
