"""`read_fleet`: the models and misses documents that a ``fleet.toml`` names, as one job."""

from __future__ import annotations

import io
import math
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.diagnostics.misses import MissedProblem, read_misses

_MOST_FOLDER_BYTES: Final = 64 * 1024 * 1024  # of the folder, which is sent to each device
_TEXT_FIELDS: Final = ("seqlens", "dtype")
_LIST_FIELDS: Final = ("dims", "inputs")
_OPTION_OF_FIELD: Final[Mapping[str, str]] = {"inputs": "--input"}
_FLEET_MODEL_FIELDS: Final = frozenset({"model", "weight", *_TEXT_FIELDS, *_LIST_FIELDS})
_FLEET_PROBLEMS_FIELDS: Final = frozenset({"file", "weight"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """A model of a fleet, with the ``options`` of `warmup build` that name its buckets and inputs.

    ``weight`` is how often it is called, against the other models.
    """

    model: str
    options: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The models of the ``fleet.toml`` in ``folder``, and missed problems, each with its weight."""

    folder: Path
    models: tuple[FleetModel, ...]
    missed: tuple[tuple[MissedProblem, float], ...] = ()

    def archive(self) -> bytes:
        """Return the files of the folder as a tar file, without hidden ones and links.

        Raises:
            SettingsError: they are too large, or one cannot be read.
        """
        file, most = io.BytesIO(), _MOST_FOLDER_BYTES // 2**20
        try:
            with tarfile.open(fileobj=file, mode="w") as tar:
                for path in sorted(self.folder.rglob("*")):
                    name = path.relative_to(self.folder)
                    is_ours = not any(part.startswith((".", "__pycache__")) for part in name.parts)
                    if not is_ours or path.is_symlink() or not path.is_file():
                        continue
                    if file.tell() + path.stat().st_size > _MOST_FOLDER_BYTES:
                        raise SettingsError(
                            f"--fleet: {shown(self.folder)} has more than {most} MiB of files, "
                            "which are sent to each device",
                            "keep fleet.toml and the models in a folder of their own",
                        )
                    tar.add(path, str(name))
        except OSError as error:
            raise SettingsError(f"--fleet: {shown(error)}", "make the folder readable") from error
        return file.getvalue()


def read_fleet(path: Path) -> Fleet:
    """Return the fleet of the file *path*; files that it names lie beside it or below.

    Raises:
        SettingsError: it cannot be read, is no TOML, or has a field that nothing is known about.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _fault(path, f"cannot be read: {shown(error)}") from error
    if extra := sorted(document.keys() - {"model", "problems"}):
        raise _fault(path, f"{', '.join(extra)}: unknown")
    folder = path.resolve().parent
    models = [
        _model(path, fields) for fields in _tables(path, document, "model", _FLEET_MODEL_FIELDS)
    ]
    missed: list[tuple[MissedProblem, float]] = []
    for fields in _tables(path, document, "problems", _FLEET_PROBLEMS_FIELDS):
        weight = _weight(path, fields)
        file = folder / _text(path, fields, "file")
        missed += [(problem, weight) for problem in read_misses(file)]
    if not models and not missed:
        raise _fault(path, "names no model and no problems")
    return Fleet(folder=folder, models=tuple(models), missed=tuple(missed))


def _model(path: Path, fields: Mapping[str, Any]) -> FleetModel:
    options: list[str] = []
    for name in _TEXT_FIELDS:
        if name in fields:
            options += [f"--{name}", _text(path, fields, name)]
    for name in _LIST_FIELDS:
        values = fields.get(name, [])
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise _fault(path, f"{name} of a model is no list of texts")
        for value in values:
            options += [_OPTION_OF_FIELD.get(name, f"--{name}"), value]
    name = _text(path, fields, "model")
    return FleetModel(model=name, options=tuple(options), weight=_weight(path, fields))


def _tables(
    path: Path, document: Mapping[str, Any], name: str, known: frozenset[str]
) -> Sequence[Mapping[str, Any]]:
    tables = document.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise _fault(path, f"{name} is no list: write [[{name}]]")
    for table in tables:
        if extra := sorted(table.keys() - known):
            raise _fault(path, f"[[{name}]] has {', '.join(extra)}; known are {_listed(known)}")
    return tables


def _text(path: Path, fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise _fault(path, f"{name} is missing, or no text")
    return value


def _weight(path: Path, fields: Mapping[str, Any]) -> float:
    value = fields.get("weight", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fault(path, "a weight is no number")
    if not 0 < value < math.inf:
        raise _fault(path, f"the weight {value} is not above 0")
    return float(value)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _fault(path: Path, what: str) -> SettingsError:
    return SettingsError(
        f"--fleet {shown(path)}: {what}", "see docs/how-to/build-on-a-cluster.md#many-models"
    )
