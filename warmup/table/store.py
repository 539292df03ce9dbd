"""`read`, `write` and `TableWriter`: a table on disk is a file and what its journal adds to it.

Reading writes nothing, needs no HOME and works on a read-only mount. A build appends to the journal
(`warmup.table.journal`) and folds it into the table at its end; what a killed build left is folded
by the next build, or by a command such as `warmup show` where it may write. Folding and `write`
replace the file: a temporary file, fsync and an atomic rename under a file lock, so that a reader
sees the old table or the new one. Lock, journal and temporary file stand beside the file to which
links lead.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
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
from warmup.core.events import print_notice
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
from warmup.core.text import problem_in, remedy_for, shown
from warmup.table.codec import decode_file, digest_of, encode_pieces
from warmup.table.journal import Journal, entries_for, journal_path
from warmup.table.merge import combine
from warmup.table.schema import MAX_TABLE_BYTES, Entry, Policy, Provenance, Table, compare_policies

LOCK_TIMEOUT_S: Final = 60
_READS: Final = 5  # of a table and its journal, while a build folds one into the other
_FOLD_S: Final = 0.1


def read(path: str | os.PathLike[str]) -> Table:
    """Return the table in the file *path*, with what its journal adds to it.

    A TableNotFoundError: there is no such file. A TableFormatError or TableSchemaError: it is no
    table that this warmup reads, or its journal is damaged or of another table.
    """
    table, remarks = _read_all(Path(path))
    for remark in remarks:
        print_notice(remark)
    return table


def read_folded(path: str | os.PathLike[str]) -> Table:
    """Return what `read` returns; first fold a journal into the table, where that may be done."""
    if os.path.exists(path) and journal_path(Path(os.path.realpath(path))).exists():  # noqa: PTH110
        with contextlib.suppress(TableWriteError):  # read-only, or a build writes now
            TableWriter(Path(path), timeout_s=0).fold()
    return read(path)


def _read_all(path: Path) -> tuple[Table, tuple[str, ...]]:
    # The journal is read first: if a build folds it meanwhile, the table does not fit, and both are
    # read again.
    if not os.path.exists(path):  # noqa: PTH110  false too for what no path can be
        return _read_file(path), ()
    place = journal_path(Path(os.path.realpath(path)))
    for reads_left in reversed(range(_READS)):
        journal = Journal(place)
        entries = journal.read_on()
        table = _read_file(path)
        try:
            later = entries_for(entries, digest_of(table), table.provenance.runtime, place)
        except TableFormatError:
            if not reads_left:
                raise
            time.sleep(_FOLD_S)
            continue
        return table.with_entries(later), _torn(journal)
    raise AssertionError


def _torn(journal: Journal) -> tuple[str, ...]:
    if not journal.torn:
        return ()
    reason = "its last line is not whole, because its writer was killed or writes it now"
    return (f"{shown(journal.path)}: {reason}; these {journal.torn} bytes are ignored",)


def _read_file(path: Path) -> Table:
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_TABLE_BYTES:
                raise TableFormatError(str(path), "", f"larger than {MAX_TABLE_BYTES} bytes")
            return decode_file(file, str(path))
    except FileNotFoundError:
        raise TableNotFoundError(f"no table at {shown(path)}") from None
    except (OSError, ValueError) as error:  # such as a path with a NUL character
        if isinstance(error, TableError):
            raise
        advice = remedy_for(error, "restore the file or build it again")
        problem = f"cannot be read: {problem_in(error)}"
        raise TableFormatError(str(path), "", problem, advice) from None


def write(path: Path, table: Table, known: Sequence[Table] = ()) -> None:
    """Write *table* to *path*; a reader sees the whole old file or the whole new one.

    The journal of the old table is removed. Links are followed and stay, and a file keeps its mode,
    its owner and its group. A character device or a FIFO is written into. Rows of *known*, tables
    that were read, are not checked again. A TableFormatError: the table could not be read back, or
    the journal beside *path* is damaged. A TableWriteError: the file cannot be written, or is too
    large.
    """
    try:
        is_stream = destination_of(path).is_stream
        if is_stream:
            replace_bytes(path, _checked_pieces(path, table, known)[1])
            return
    except (OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        raise _write_error(path, error) from error
    TableWriter(path).write(table, known)


class TableWriter:
    """Changes the table at *path* for as long as a build takes.

    A change is appended to the journal and costs its own bytes. Several writers may change a table:
    under its lock, which is waited for at most *timeout_s*, each reads what others have appended
    before it decides what to change. Methods return the table as it is on disk then.

    Every method may raise a TableWriteError, where a file cannot be written, and a
    TableFormatError, where the table or its journal is damaged, or one does not fit the other.
    """

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._table: Table | None = None  # on disk, with the journal
        self._journal = Journal(path)
        self._digest = ""  # of the file alone
        self._stamp: tuple[int, ...] = ()
        self._is_folded = True  # the file lacks nothing

    def add(
        self, provenance: Provenance, policy: Policy, rows: Mapping[str, Row], *, redo: bool = False
    ) -> Table:
        """Add *rows* to the table, which is created if missing; with *redo* in place of its rows.

        A TableMismatchError: the file is for another device, runtime or policy.
        """
        with self._locked() as target:
            before = self._load(target)
            if before is None:
                return self._replace(target, Table(provenance, policy, dict(rows)))
            check_same_origin(self._path, before, provenance.runtime, policy)
            origin = before.provenance.assuming(provenance.assumptions).costing(provenance.calls)
            if origin.peaks is None:
                origin = replace(origin, peaks=provenance.peaks)
            added = {key: row for key, row in rows.items() if redo or key not in before.rows}
            return self._append(target, before, Entry(added, provenance=origin))

    def remove(self, keys: Collection[str]) -> Table:
        return self._change(
            lambda table: Entry(removed=tuple(sorted(table.rows.keys() & set(keys))))
        )

    def distrust(self, rows: Mapping[str, Row]) -> Table:
        """Mark the rows of the keys in *rows* with the reason in ``untrusted`` of the row there.

        A row that another writer has replaced with another winner in the meantime stays as it is.
        """

        def marked(table: Table) -> Entry:
            return Entry(
                {
                    key: replace(own, untrusted=row.untrusted)
                    for key, row in rows.items()
                    if (own := table.rows.get(key)) is not None and own.winner == row.winner
                }
            )

        return self._change(marked)

    def write(self, table: Table, known: Sequence[Table] = ()) -> Table:
        """Put *table* in place of the table and its journal; see the function `write`."""
        with self._locked() as target:
            self._journal = Journal(journal_path(target))
            if os.path.lexists(self._journal.path):
                self._load(target)  # nothing is removed that is damaged or of another table
            return self._replace(target, table, known)

    def refresh(self) -> Table | None:
        """Return the table if other writers have changed it since this one last saw it."""
        with self._locked() as target:
            before, after = self._table, self._load(target)
            return None if after is before else after

    def fold(self) -> None:
        """Put what the journal adds into the table's file, and remove the journal."""
        with self._locked() as target:
            table = self._load(target)
            if table is not None and not self._is_folded:
                self._replace(target, table, [table])
            elif table is not None:
                self._journal.remove()

    def _locked(self) -> contextlib.AbstractContextManager[Path]:
        return _writing(self._path, LOCK_TIMEOUT_S if self._timeout_s is None else self._timeout_s)

    def _change(self, change: Callable[[Table], Entry]) -> Table:
        with self._locked() as target:
            before = self._load(target)
            if before is None:
                raise TableNotFoundError(f"no table at {shown(self._path)}")
            return self._append(target, before, change(before))

    def _load(self, target: Path) -> Table | None:
        stamp = _stamp_of(target)
        if self._table is None or stamp != self._stamp:
            self._read(target, stamp)
        else:
            try:
                self._read_on(self._table)
            except TableFormatError:  # its lines may have been folded, and the inode used again
                self._read(target, stamp)
        for remark in _torn(self._journal):
            print_notice(remark)
            self._journal.trim()  # nobody else writes under the lock
        return self._table

    def _read(self, target: Path, stamp: tuple[int, ...]) -> None:
        self._journal = Journal(journal_path(target))
        self._table, self._digest, self._stamp, self._is_folded = None, "", stamp, True
        if not stamp:  # a journal whose table is gone belongs to no digest
            entries_for(self._journal.read_on(), "", None, self._journal.path)
            return
        table = _read_file(target)
        self._digest = digest_of(table)
        self._read_on(table)

    def _read_on(self, table: Table) -> None:
        known = [Entry(digest=self._digest)] if self._journal.size else []
        entries = [*known, *self._journal.read_on()]
        runtime = table.provenance.runtime
        later = entries_for(entries, self._digest, runtime, self._journal.path)
        self._table = table.with_entries(later)
        self._is_folded = self._is_folded and not later

    def _append(self, target: Path, before: Table, entry: Entry) -> Table:
        if entry.provenance == before.provenance:
            entry = replace(entry, provenance=None)
        if entry.is_empty:
            return before
        after = before.with_entries([entry])
        # A row takes up to twice the bytes in a table, which is indented, that it takes here.
        room = (MAX_TABLE_BYTES - target.stat().st_size) // 2
        if not self._journal.append(entry, target, self._digest, room):
            return self._replace(target, after, [before])
        self._table, self._is_folded = after, False
        return after

    def _replace(self, target: Path, table: Table, known: Sequence[Table] = ()) -> Table:
        digest, pieces = _checked_pieces(target, table, known)
        if self._journal.size:  # of which a process that is killed now leaves a whole one
            self._journal.append(Entry(digest=digest), target, self._digest)
        replace_bytes(target, pieces)
        self._journal = Journal(journal_path(target))
        self._journal.remove()
        self._table, self._digest, self._stamp = table, digest, _stamp_of(target)
        self._is_folded = True
        return table


def _stamp_of(path: Path) -> tuple[int, ...]:
    """Return what changes whenever the file *path* is replaced; empty without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def check_same_origin(path: Path, table: Table, runtime: Runtime, policy: Policy) -> None:
    """Raise a TableMismatchError unless rows of *runtime* and *policy* may be added to *table*."""
    differs = origin_differences(table, runtime, policy)
    if differs:
        advice = "write to another file with --out, or remove this one"
        raise TableMismatchError(str(path), differs, advice)


def origin_differences(table: Table, runtime: Runtime, policy: Policy) -> tuple[str, ...]:
    """Return a line for each field that forbids adding rows of *runtime* and *policy*."""
    hard = [str(m) for m in compare_runtimes(table.provenance.runtime, runtime) if m.is_hard]
    settings = [
        f"{field}: table {expected}, here {actual}"
        for field, expected, actual in compare_policies(table.policy, policy)
    ]
    return (*hard, *settings)


def check_writable(path: Path) -> None:
    """Check that a table can be written to *path*; create its folder, and fold its journal.

    A SettingsError: *path* is a folder or no ``.json`` file. A TableWriteError: it cannot be
    written. A TableFormatError: there is a journal, and it or the table is damaged.
    """
    if path.is_dir() or path.suffix != ".json":
        raise SettingsError(
            f"--out {path} is not a .json file", "name a file such as tables/mlp.json"
        )
    with _writing(path, LOCK_TIMEOUT_S) as target:
        probe_folder(target)
        has_journal = os.path.lexists(journal_path(target))
    if has_journal:
        TableWriter(path).fold()


@contextlib.contextmanager
def _writing(path: Path, timeout_s: float) -> Iterator[Path]:
    """Hold the write lock of the file that *path* leads to, and give that file's path."""
    # An OSError inside is raised as a `TableWriteError`.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = regular_file_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, timeout_s):
            yield target
    except TableError:
        raise
    except TimeoutError as error:
        raise TableWriteError(
            str(path), problem_in(error), "wait for the other writer to finish"
        ) from None
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError | ValueError) -> TableWriteError:
    problem, advice = problem_in(error), "name another file"
    if isinstance(error, PermissionError):
        what = "it" if problem == READ_ONLY else "its folder"
        advice = f"make {what} writable or name another file"
    return TableWriteError(str(path), problem, remedy_for(error, advice))


def _checked_pieces(target: Path, table: Table, known: Sequence[Table]) -> tuple[str, list[bytes]]:
    fresh = {
        key: row
        for key, row in table.rows.items()
        if not any(other.rows.get(key) is row for other in known)
    }
    digest, pieces = encode_pieces(table)
    is_new = len(fresh) == len(table.rows)
    checked = pieces if is_new else encode_pieces(replace(table, rows=fresh))[1]
    decode_file(io.BytesIO(b"".join(checked)), str(target))
    size = sum(map(len, pieces))
    if size > MAX_TABLE_BYTES:
        raise TableWriteError(
            str(target),
            f"{len(table.rows)} rows have {size} bytes, and no table of more than "
            f"{MAX_TABLE_BYTES} bytes is read",
            "split it into tables of one folder, which are found together",
        )
    return digest, pieces


# `find` and `discover`: the table of a path, and the tables for this machine in known folders.

_SHIPPED: Final = Path(__file__).resolve().parent.parent / "tables"
_CHECKOUT: Final = Path(__file__).resolve().parents[2] / "tables"  # where nothing is shipped


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, the files that it was read from, and remarks on files that were left out."""

    table: Table
    paths: tuple[Path, ...]
    remarks: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        return ", ".join(str(path) for path in self.paths)


def search_folders() -> tuple[Path, ...]:
    from platformdirs import user_data_path

    folders = [Path("tables")]
    # A locked-down pod may have no home folder, and then no user data folder either.
    with contextlib.suppress(RuntimeError, KeyError, OSError):
        folders.append(user_data_path("inductor-warmup") / "tables")
    folders.append(_SHIPPED if _SHIPPED.is_dir() else _CHECKOUT)
    return tuple(folders)


def find(explicit: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> FoundTable:
    """Return the table at the path *explicit* or, without it, at ``WARMUP_TABLE``.

    A TableNotFoundError: neither is given, or there is no such file. Raises as `read` does.
    """
    named = explicit if explicit is not None else environment.get("WARMUP_TABLE")
    if not named:
        raise TableNotFoundError("no table is named", ("argument", "WARMUP_TABLE"))
    path = Path(named)
    table, remarks = _read_to_serve(path)
    return FoundTable(table, (path,), remarks)


def discover(here: Runtime, folders: tuple[Path, ...] | None = None) -> FoundTable:
    """Return the union of all tables for this machine in the first folder that has any.

    Folders are searched in the order of `search_folders`, in each first the folder of the device's
    slug, then the others, because the same device may have several names. Left out with a remark
    are damaged files, files under the device's slug that are for another runtime, and files with
    other inductor options than the first. A TableNotFoundError: no folder has a table for this
    machine.
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
            return FoundTable(_read_to_serve(path)[0], (path,))
    return None


def _matching(
    paths: Sequence[Path], here: Runtime, remarks: list[str], *, is_own: bool
) -> list[tuple[Path, Table]]:
    matching: list[tuple[Path, Table]] = []
    for path in paths:
        try:
            table, own_remarks = _read_to_serve(path)
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
            remarks.extend(own_remarks)
    return matching


def _read_to_serve(path: Path) -> tuple[Table, tuple[str, ...]]:
    """Return the table in *path*, and remarks: without its journal, where that cannot be used."""
    table: Table | None = None
    try:
        table, remarks = _read_all(path)
    except TableError as error:
        remarks = (f"{error}; the table is used without it",)
    if table is None:  # outside, so that the error of a damaged file is raised alone
        table = _read_file(path)
    places = path, journal_path(Path(os.path.realpath(path)))
    writable = tuple(filter(None, (remark_on_writers(place) for place in places)))
    return table, (*remarks, *writable)
