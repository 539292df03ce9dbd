"""`read`, `write`, `find` and `discover`: the table files on disk.

Reading writes nothing, needs no HOME and works on a read-only mount. Writing is a temporary file,
fsync and an atomic rename under a file lock, so that a reader sees the old table or the new one.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warmup.core.errors import (
    SettingsError,
    TableError,
    TableFormatError,
    TableMismatchError,
    TableNotFoundError,
    TableWriteError,
)
from warmup.core.files import replace_text
from warmup.core.rows import Row
from warmup.core.runtime import Runtime, compare_runtimes
from warmup.table.codec import decode, encode
from warmup.table.decode import MAX_TABLE_BYTES
from warmup.table.merge import combine
from warmup.table.schema import Policy, Provenance, Table, compare_policies

LOCK_TIMEOUT_S: Final = 60
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


def read(path: str | os.PathLike[str]) -> Table:
    """Return the table in the file *path*.

    Raises:
        TableNotFoundError: there is no such file.
        TableFormatError, TableSchemaError: the file is not a table that this warmup reads.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TABLE_BYTES + 1)
    except FileNotFoundError:
        raise TableNotFoundError(f"no table at {path}") from None
    except OSError as error:
        raise TableFormatError(str(path), "", f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a path with a NUL character
        raise TableFormatError(str(path), "", f"cannot be read: {error}") from None
    if len(raw) > MAX_TABLE_BYTES:
        raise TableFormatError(str(path), "", f"larger than {MAX_TABLE_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TableFormatError(str(path), "", f"not UTF-8 (byte {error.start})") from None
    return decode(text, str(path))


def write(path: Path, table: Table) -> None:
    """Write *table* to *path*; a reader sees the whole old file or the whole new one.

    Raises:
        TableWriteError: the folder or the file cannot be written.
    """
    with _writing(path):
        _replace(path, table)


def add_rows(
    path: Path,
    provenance: Provenance,
    policy: Policy,
    rows: Mapping[str, Row],
    *,
    redo: bool = False,
) -> Table:
    """Add *rows* to the table at *path*, which is created if missing; return the table as written.

    Safe for several writers: the file is read again under the lock, so that rows of other writers
    are kept. A row that exists already is kept too, unless *redo* is true.

    Raises:
        TableMismatchError: the file is for another device, runtime or policy.
        TableWriteError: the file cannot be written.
    """
    with _writing(path):
        if path.exists():
            table = read(path)
            check_same_origin(path, table, provenance.runtime, policy)
        else:
            table = Table(provenance, policy)
        union = {**table.rows, **rows} if redo else {**rows, **table.rows}
        table = replace(table, rows=union)
        _replace(path, table)
        return table


def remove_rows(path: Path, keys: Collection[str]) -> Table:
    """Remove the rows *keys* from the table at *path*; return the table as written.

    Raises:
        TableWriteError: the file cannot be written.
    """
    with _writing(path):
        table = read(path)
        table = replace(table, rows={k: row for k, row in table.rows.items() if k not in keys})
        _replace(path, table)
        return table


def distrust_rows(path: Path, rows: Mapping[str, Row]) -> Table:
    """Mark in the table at *path* the rows of the keys in *rows*; return the table as written.

    Each is marked with the reason in ``untrusted`` of the row in *rows*. A row that another writer
    has replaced with another winner in the meantime stays as it is.

    Raises:
        TableWriteError: the file cannot be written.
    """
    with _writing(path):
        table = read(path)
        marked = {
            key: replace(own, untrusted=row.untrusted)
            for key, row in rows.items()
            if (own := table.rows.get(key)) is not None and own.winner == row.winner
        }
        table = replace(table, rows={**table.rows, **marked})
        _replace(path, table)
        return table


def check_same_origin(path: Path, table: Table, runtime: Runtime, policy: Policy) -> None:
    """Check that rows tuned on *runtime* under *policy* may be added to *table*.

    Raises:
        TableMismatchError: they may not; the error names each differing field.
    """
    differs = origin_differences(table, runtime, policy)
    if differs:
        advice = "write to another file with --out, or replace it with --force"
        raise TableMismatchError(str(path), differs, advice)


def origin_differences(table: Table, runtime: Runtime, policy: Policy) -> tuple[str, ...]:
    """Return a line for each field that forbids adding rows of *runtime* and *policy* to *table*.

    Empty when rows may be added.
    """
    hard = [str(m) for m in compare_runtimes(table.provenance.runtime, runtime) if m.is_hard]
    settings = [
        f"{field}: table {expected}, here {actual}"
        for field, expected, actual in compare_policies(table.policy, policy)
    ]
    return (*hard, *settings)


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
    with contextlib.suppress(OSError):
        if path.stat().st_mode & stat.S_IWOTH:
            return (f"{path} can be written by every user of this machine",)
    return ()


def check_writable(path: Path) -> None:
    """Check that a table can be written to *path*, and create its folder.

    Raises:
        SettingsError: *path* is a folder or not a ``.json`` file.
        TableWriteError: the folder or the file cannot be written.
    """
    if path.is_dir() or path.suffix != ".json":
        raise SettingsError(
            f"--out {path} is not a .json file", "name a file such as tables/mlp.json"
        )
    with _writing(path):
        if path.exists() and not os.access(path, os.W_OK):
            raise TableWriteError(
                str(path), "the file is read-only", "name another file with --out"
            )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Hold the write lock of *path*; an OSError inside is raised as a `TableWriteError`."""
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise TableWriteError(
            str(path), f"another writer held it for {LOCK_TIMEOUT_S} s", "wait for it to finish"
        ) from None
    except TableError:
        raise
    except OSError as error:
        advice = "make its folder writable or name another file with --out"
        raise TableWriteError(str(path), error.strerror or str(error), advice) from error


def _replace(path: Path, table: Table) -> None:
    text = encode(table)
    decode(text, str(path))  # an unreadable table must not replace a readable one
    replace_text(path, text)
