"""`read` and `write`: the table files on disk.

Reading writes nothing, needs no HOME and works on a read-only mount. Writing is a temporary file,
fsync and an atomic rename under a file lock, so that a reader sees the old table or the new one.
Lock and temporary file stand beside the file to which links lead, and are gone afterwards; those of
a writer that was killed are removed by the next writer.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warmup.core.device import Runtime, compare_runtimes
from warmup.core.errors import (
    SettingsError,
    TableError,
    TableFormatError,
    TableMismatchError,
    TableNotFoundError,
    TableWriteError,
)
from warmup.core.files import (
    READ_ONLY,
    destination_of,
    locked,
    open_regular,
    probe_folder,
    regular_file_of,
    remark_on_writers,
    replace_bytes,
)
from warmup.core.rows import Row
from warmup.core.text import remedy_for, shown
from warmup.table.codec import decode_file, encode_pieces
from warmup.table.merge import combine
from warmup.table.schema import (
    MAX_TABLE_BYTES,
    Policy,
    Provenance,
    Table,
    compare_policies,
)

LOCK_TIMEOUT_S: Final = 60


def read(path: str | os.PathLike[str]) -> Table:
    """Return the table in the file *path*.

    Raises:
        TableNotFoundError: there is no such file.
        TableFormatError, TableSchemaError: the file is not a table that this warmup reads.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_TABLE_BYTES:
                raise TableFormatError(str(path), "", f"larger than {MAX_TABLE_BYTES} bytes")
            return decode_file(file, str(path))
    except FileNotFoundError:
        raise TableNotFoundError(f"no table at {shown(path)}") from None
    except OSError as error:
        if isinstance(error, TableError):
            raise
        problem = f"cannot be read: {error.strerror}"
        advice = remedy_for(error, "restore the file or build it again")
        raise TableFormatError(str(path), "", problem, advice) from None
    except ValueError as error:  # a path with a NUL character
        raise TableFormatError(str(path), "", f"cannot be read: {error}") from None


def write(path: Path, table: Table, known: Sequence[Table] = ()) -> None:
    """Write *table* to *path*; a reader sees the whole old file or the whole new one.

    Links are followed and stay, and a file keeps its mode, its owner and its group. A character
    device or a FIFO is written into. Rows of *known*, tables that were read, are not checked again.

    Raises:
        TableFormatError: the table could not be read back.
        TableWriteError: the folder or the file cannot be written, or the table is too large.
    """
    try:
        is_stream = destination_of(path).is_stream
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error
    if is_stream:
        _replace(path, table, known)
        return
    with _writing(path) as target:
        _replace(target, table, known)


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
    with _writing(path) as target:
        if target.exists():
            before = read(target)
            check_same_origin(path, before, provenance.runtime, policy)
        else:
            before = Table(provenance, policy)
        union = {**before.rows, **rows} if redo else {**rows, **before.rows}
        origin = before.provenance.assuming(provenance.assumptions).costing(provenance.calls)
        if origin.peaks is None:
            origin = replace(origin, peaks=provenance.peaks)
        table = replace(before, provenance=origin, rows=union)
        _replace(target, table, [before])
        return table


def remove_rows(path: Path, keys: Collection[str]) -> Table:
    """Remove the rows *keys* from the table at *path*; return the table as written.

    Raises:
        TableWriteError: the file cannot be written.
    """
    return _rewrite(
        path,
        lambda table: replace(
            table, rows={key: row for key, row in table.rows.items() if key not in keys}
        ),
    )


def forget_costs(path: Path, names: Collection[str]) -> Table:
    """Remove what the calls *names* cost from the table at *path*; return the table as written.

    Raises:
        TableWriteError: the file cannot be written.
    """
    return _rewrite(
        path, lambda table: replace(table, provenance=table.provenance.without_costs(names))
    )


def distrust_rows(path: Path, rows: Mapping[str, Row]) -> Table:
    """Mark in the table at *path* the rows of the keys in *rows*; return the table as written.

    Each is marked with the reason in ``untrusted`` of the row in *rows*. A row that another writer
    has replaced with another winner in the meantime stays as it is.

    Raises:
        TableWriteError: the file cannot be written.
    """

    def marked(table: Table) -> Table:
        changed = {
            key: replace(own, untrusted=row.untrusted)
            for key, row in rows.items()
            if (own := table.rows.get(key)) is not None and own.winner == row.winner
        }
        return replace(table, rows={**table.rows, **changed})

    return _rewrite(path, marked)


def _rewrite(path: Path, change: Callable[[Table], Table]) -> Table:
    """Write the table at *path* as *change* returns it; return it. The file is read under the lock.

    Raises:
        TableWriteError: the file cannot be written.
    """
    with _writing(path) as target:
        before = read(target)
        table = change(before)
        _replace(target, table, [before])
        return table


def check_same_origin(path: Path, table: Table, runtime: Runtime, policy: Policy) -> None:
    """Check that rows tuned on *runtime* under *policy* may be added to *table*.

    Raises:
        TableMismatchError: they may not; the error names each differing field.
    """
    differs = origin_differences(table, runtime, policy)
    if differs:
        advice = "write to another file with --out, or remove this one"
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
    with _writing(path) as target:
        probe_folder(target)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Hold the write lock of the file that *path* leads to, and give that file's path.

    An OSError inside is raised as a `TableWriteError`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = regular_file_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, LOCK_TIMEOUT_S):
            yield target
    except TableError:
        raise
    except TimeoutError as error:
        raise TableWriteError(
            str(path), error.strerror or str(error), "wait for the other writer to finish"
        ) from None
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError | ValueError) -> TableWriteError:
    problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
    advice = "name another file"
    if isinstance(error, PermissionError):
        what = "it" if problem == READ_ONLY else "its folder"
        advice = f"make {what} writable or name another file"
    return TableWriteError(str(path), problem, remedy_for(error, advice))


def _replace(target: Path, table: Table, known: Sequence[Table] = ()) -> None:
    """Write *table* to *target*, if it can be read back; rows of *known* were read before."""
    fresh = {
        key: row
        for key, row in table.rows.items()
        if not any(other.rows.get(key) is row for other in known)
    }
    pieces = encode_pieces(table)
    is_new = len(fresh) == len(table.rows)
    checked = pieces if is_new else encode_pieces(replace(table, rows=fresh))
    decode_file(io.BytesIO(b"".join(checked)), str(target))
    size = sum(map(len, pieces))
    if size > MAX_TABLE_BYTES:
        raise TableWriteError(
            str(target),
            f"{len(table.rows)} rows have {size} bytes, and no table of more than "
            f"{MAX_TABLE_BYTES} bytes is read",
            "split it into tables of one folder, which are found together",
        )
    replace_bytes(target, pieces)


# `find` and `discover`: the table of a path, and the tables for this machine in known folders.

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
