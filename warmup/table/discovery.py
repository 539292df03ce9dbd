"""`find` and `discover`: the table of a path, and the tables for this machine in known folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.errors import TableError, TableNotFoundError
from warmup.core.files import remark_on_writers
from warmup.core.runtime import Runtime, compare_runtimes
from warmup.table.merge import combine
from warmup.table.schema import Table
from warmup.table.store import read

_SHIPPED: Final = Path(__file__).resolve().parent.parent / "tables"
_CHECKOUT: Final = Path(__file__).resolve().parents[2] / "tables"


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, the files that it was read from, and remarks on files that were left out."""

    table: Table
    paths: tuple[Path, ...]
    remarks: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The paths of the files as one text."""
        return ", ".join(str(path) for path in self.paths)


def shipped_folder() -> Path:
    """Return the folder of the tables that are shipped with the package, or in the checkout."""
    return _SHIPPED if _SHIPPED.is_dir() else _CHECKOUT


def search_folders() -> tuple[Path, ...]:
    """Return the folders in which `discover` looks for tables, first to last."""
    from platformdirs import user_data_path

    folders = [Path("tables")]
    # A locked-down pod may have no home folder, and then no user data folder either.
    with contextlib.suppress(RuntimeError, KeyError, OSError):
        folders.append(user_data_path("inductor-warmup") / "tables")
    folders.append(shipped_folder())
    return tuple(folders)


def find(explicit: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> FoundTable:
    """Return the table at the path *explicit* or, without it, at ``WARMUP_TABLE``.

    Raises:
        TableNotFoundError: neither is given, or there is no such file.
        TableFormatError, TableSchemaError: the file is not a table that this warmup reads.
    """
    named = explicit if explicit is not None else environment.get("WARMUP_TABLE")
    if not named:
        raise TableNotFoundError("no table is named", ("argument", "WARMUP_TABLE"))
    path = Path(named)
    return FoundTable(read(path), (path,), _permission_remarks(path))


def discover(here: Runtime, folders: tuple[Path, ...] | None = None) -> FoundTable:
    """Return the union of all tables for this machine in the first folder that has any.

    Folders are searched in the order of `search_folders`, in each first the folder of the device's
    slug, then the others, because the same device may have several names. Of two rows for a key
    the newer file's is taken, with a remark on a conflict. Left out with a remark are damaged
    files, files under the device's slug that are for another runtime, and files with other
    inductor options than the first.

    Raises:
        TableNotFoundError: no folder has a table for this machine.
    """
    remarks: list[str] = []
    searched = search_folders() if folders is None else folders
    for folder in searched:
        own = sorted((folder / here.device.slug).glob("*.json"))
        others = sorted(path for path in folder.glob("*/*.json") if path not in own)
        for paths in (own, others):
            matching = _matching(paths, here, remarks, is_own=paths is own)
            if matching:
                union, conflicts = combine([table for _, table in matching])
                remarks.extend(f"conflict: {conflict}" for conflict in conflicts)
                return FoundTable(union, tuple(path for path, _ in matching), tuple(remarks))
    raise TableNotFoundError(
        f"no table for {here.device.name} ({here.device.slug})",
        tuple(str(folder / here.device.slug) for folder in searched) + tuple(remarks),
    )


def first_unfit(here: Runtime) -> FoundTable | None:
    """Return the first table of the searched folders, where `discover` has found that none fits.

    Of the tables that are shipped only those of the device's name count; None without any.
    """
    *own, shipped = search_folders()
    paths = [path for folder in own for path in sorted(folder.glob("*/*.json"))]
    paths += sorted((shipped / here.device.slug).glob("*.json"))
    for path in sorted(paths, key=lambda path: path.parent.name != here.device.slug):
        with contextlib.suppress(TableError):
            return FoundTable(read(path), (path,))
    return None


def _matching(
    paths: Sequence[Path], here: Runtime, remarks: list[str], *, is_own: bool
) -> list[tuple[Path, Table]]:
    """Return those of *paths* whose tables are for this machine; add to *remarks*."""
    matching: list[tuple[Path, Table]] = []
    for path in paths:
        try:
            table = read(path)
        except TableError as error:
            remarks.append(str(error))
            continue
        hard = [m for m in compare_runtimes(table.provenance.runtime, here) if m.is_hard]
        if hard:
            if is_own:
                remarks.append(f"{path}: left out: {'; '.join(map(str, hard))}")
        elif matching and table.policy.options != matching[0][1].policy.options:
            remarks.append(f"{path}: left out: other inductor options than {matching[0][0]}")
        else:
            matching.append((path, table))
            if not is_own:
                remarks.append(f"{path}: taken although the device is named {here.device.name!r}")
            remarks.extend(_permission_remarks(path))
    return matching


def _permission_remarks(path: Path) -> tuple[str, ...]:
    remark = remark_on_writers(path)
    return (remark,) if remark else ()
