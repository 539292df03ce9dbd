"""The settings file of a project: defaults for options, in `warmup.toml` or in `pyproject.toml`.

The file is in the working directory. It holds values of known options and nothing that is run.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import printable
from warmup.core.errors import SettingsError

OWN_FILE: Final = "warmup.toml"
PROJECT_FILE: Final = "pyproject.toml"
_SECTION: Final = ("tool", "warmup")
_MAX_SETTINGS_BYTES: Final = 2**20
_FROM_FILE: Final = "DEFAULT_MAP"  # click's name for a value from a default map
# Options that must be typed: they make a command run code that is no model, or change its kind.
_TYPED_ONLY: Final = frozenset(
    ("help", "version", "quiet", "verbose", "debug", "install-completion", "show-completion")
)
_TRUSTED: Final = "bundle"  # compiled code, where its value is a path
# Variables that overrule the file, by option and command.
_OVERRULED_BY: Final[Mapping[tuple[str, str], str]] = {
    ("compare", "table"): "WARMUP_TABLE",
    ("run", "audit_log"): "WARMUP_AUDIT_LOG",
}
# An option on the command line replaces these from the file.
_OF_MODEL: Final = (
    *("model", "seqlens", "dims", "inputs", "dtype", "budget", "bundle", "bundle_graphs"),
    *("bundle_compiled", "model_args", "random_weights"),
    *("all_layers", "pad_weights", "policy"),
)
_REPLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "command": (*_OF_MODEL, "problems", "timings", "dry_run", "force"),
    "problems": _OF_MODEL,
    "model": ("problems", "model_args", "random_weights"),
    "seqlens": ("dims",),
    "dims": ("seqlens",),
    "as_json": ("form",),
    "form": ("as_json",),
}
_GOES_WITH: Final = {"model": "prime"}  # from the file, only where the other is given too


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults in one settings file: by command, then by parameter."""

    path: Path
    defaults: Mapping[str, Any]


def read_settings(folder: Path, group: Any) -> Settings | None:
    """Return the settings in *folder* for the commands of *group*; None where it has none.

    `warmup.toml` is read, and only without it the section ``[tool.warmup]`` of `pyproject.toml`.

    Raises:
        SettingsError: the file cannot be read, or has a name or a value that no option takes; the
            message names the file and the line.
    """
    for name, section in ((OWN_FILE, ()), (PROJECT_FILE, _SECTION)):
        path = folder / name
        if not path.is_file():
            continue
        file = _File(path, section)
        if file.values is not None:
            return Settings(Path(name), file.defaults(group))
        if name == OWN_FILE:
            return None
    return None


def effective(
    given: Mapping[str, Any], sources: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters *given* to a command without settings that the command line replaces.

    *sources* says where each comes from, in click's words; *defaults* has the command's own.
    """
    typed = {name for name, source in sources.items() if source in ("COMMANDLINE", "ENVIRONMENT")}
    replaced = {other for name in typed for other in _REPLACES.get(name, ()) if other not in typed}
    replaced |= {name for name, other in _GOES_WITH.items() if other in given and not given[other]}
    return {
        name: defaults[name] if name in replaced and sources.get(name) == _FROM_FILE else value
        for name, value in given.items()
    }


class _File:
    """One settings file: its text, and the values of its section; None without a section."""

    def __init__(self, path: Path, section: tuple[str, ...]) -> None:
        self.name = path.name
        self.section = section
        try:
            raw = path.read_bytes()
            if len(raw) > _MAX_SETTINGS_BYTES:
                raise self._error(f"more than {_MAX_SETTINGS_BYTES} bytes", "shorten it")
            self.lines = raw.decode("utf-8").splitlines()
            values: Any = tomllib.loads(raw.decode("utf-8"))
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}", "make it readable") from error
        except ValueError as error:  # not TOML, or not UTF-8
            raise self._error(f"not TOML: {error}", "mend it, or remove it") from error
        for word in section:
            values = values.get(word) if isinstance(values, dict) else None
        if values is not None and not isinstance(values, dict):
            raise self._error(f"{'.'.join(section)} is no section", "write [tool.warmup]")
        self.values: dict[str, Any] | None = values

    def defaults(self, group: Any) -> dict[str, Any]:
        """Return the default map of *group*; settings of one command overrule those of all."""
        assert self.values is not None
        commands = dict(_commands(group, ()))
        tree: dict[str, Any] = {}
        shared = {key: value for key, value in self.values.items() if not isinstance(value, dict)}
        self._check_names((), shared, {name for options in commands.values() for name in options})
        for path, options in commands.items():
            own: Any = self.values
            for word in path:
                own = own.get(word, {}) if isinstance(own, dict) else own
            if not isinstance(own, dict):
                raise self._error_at(path[:-1], path[-1], "is no section", "write it in brackets")
            self._check_names(path, own, set(options))
            values = {
                **{
                    options[key].name: self._value((), key, value, options[key])
                    for key, value in shared.items()
                    if key in options
                },
                **{
                    options[key].name: self._value(path, key, value, options[key])
                    for key, value in own.items()
                },
            }
            node = tree
            for word in path:
                node = node.setdefault(word, {})
            node.update((n, v) for n, v in values.items() if not _is_overruled(path[-1], n))
        self._check_sections((), self.values, list(commands))
        return tree

    def _check_names(
        self, path: tuple[str, ...], values: Mapping[str, Any], known: set[str]
    ) -> None:
        for key in values:
            if key not in known:
                self._refuse(path, key, sorted(known), "option")

    def _check_sections(
        self, path: tuple[str, ...], values: Mapping[str, Any], commands: list[tuple[str, ...]]
    ) -> None:
        """Check that each section in *values* is that of a command, or of a group of commands."""
        below = {command[len(path)] for command in commands if command[: len(path)] == path}
        for key, value in values.items():
            if isinstance(value, dict):
                if key not in below:
                    self._refuse(path, key, sorted(below), "command")
                if (*path, key) not in commands:
                    self._check_sections((*path, key), value, commands)
            elif path:
                self._refuse(path, key, [], "option")

    def _value(self, path: tuple[str, ...], key: str, value: Any, parameter: Any) -> Any:
        """Return *value* as the command line gives it to *parameter*."""
        if getattr(parameter, "is_flag", False):
            if not isinstance(value, bool):
                raise self._error_at(path, key, f"{value!r} is not true or false", "write one")
            return value
        texts = [value] if not isinstance(value, list) else value
        if not texts or not all(type(text) in (str, int, float) for text in texts):
            raise self._error_at(path, key, f"{value!r} is no value", "write a text or a number")
        if parameter.multiple:
            return [str(text) for text in texts]
        return ",".join(str(text) for text in texts)

    def _refuse(self, path: tuple[str, ...], key: str, known: list[str], what: str) -> None:
        """Raise the error for an unknown *key*."""
        near = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
        fix = f"use {near[0]}" if near else "see docs/reference/settings.md#settings-file"
        command = f" of warmup {' '.join(path)}" if path else ""
        raise self._error_at(path, key, f"is no {what}{command} that a file may set", fix)

    def _error_at(self, path: tuple[str, ...], key: str, problem: str, fix: str) -> SettingsError:
        line = self._line_of((*self.section, *path), key)
        where = f"{self.name}:{line}" if line else self.name
        name = ".".join((*self.section, *path, key))
        return SettingsError(printable(f"{where}: {name}: {problem}"), fix)

    def _error(self, problem: str, fix: str) -> SettingsError:
        return SettingsError(printable(f"{self.name}: {problem}"), fix)

    def _line_of(self, section: tuple[str, ...], key: str) -> int | None:
        """Return the number of the line with *key* in *section*; None where it is not found."""
        current: tuple[str, ...] = ()
        for number, line in enumerate(self.lines, start=1):
            if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line):
                current = tuple(word.strip(" \t\"'") for word in header[1].split("."))
                if current == (*section, key):
                    return number
            elif re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line) and current == section:
                return number
        return None


def _is_overruled(command: str, parameter: str) -> bool:
    return bool(os.environ.get(_OVERRULED_BY.get((command, parameter), "")))


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of each command under *group*, and its options that a file may set by name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
            continue
        options = {}
        for parameter in command.params:
            long = max(parameter.opts, key=len)
            word = long.removeprefix("--")
            is_code = word == _TRUSTED and not getattr(parameter, "is_flag", False)
            if long.startswith("--") and word not in _TYPED_ONLY and not is_code:
                options[word] = parameter
        yield (*path, name), options
