"""`import_configs` and `verify_imported`: configs of other tools in a table, then measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmup.core.imported_config import ImportedConfig
from warmup.core.method import Search
from warmup.core.rows import Row
from warmup.diagnostics.imports.entry import IMPORTED_REASON, Entry, ImportedEntry
from warmup.diagnostics.misses import MissedProblem
from warmup.keys.registry import kind_of
from warmup.table import Table
from warmup.table.policy import DEFAULT_MODE, PolicyOptions
from warmup.table.store import add_imported
from warmup.tuning.from_misses import build_problems
from warmup.tuning.report import BuildReport, Observer
from warmup.tuning.setup import check_out, find_setup, open_table


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """The table that got configs: its path, what is in it now, and which keys had a row before.

    A key with a row gets no config. ``left_out`` counts, by key, the configs beyond the number that
    a table holds of a key.
    """

    path: Path
    table: Table
    with_row: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def import_configs(
    entries: Iterable[Entry],
    out: str | Path,
    *,
    device: str = "auto",
    mode: str = DEFAULT_MODE,
) -> ImportedTable:
    """Add the configs of *entries* to the table *out*, unverified; nothing is measured.

    *device* and *mode* are those of a build: the table is for this machine, although nobody knows
    where the configs were chosen.

    Raises:
        SettingsError: an argument cannot be used.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
    """
    found: dict[str, list[ImportedConfig]] = {}
    for entry in entries:
        if isinstance(entry, ImportedEntry) and entry.config is not None:
            found.setdefault(entry.key, []).append(entry.config)
    path = Path(out)
    check_out(path)
    setup = find_setup(device, PolicyOptions(mode=mode))
    table, _ = open_table(path, setup, force=False)
    added = add_imported(path, table, {key: tuple(configs) for key, configs in found.items()})
    left_out = {}
    for key, kept in added.imported.items():
        given = (*found.get(key, ()), *table.imported.get(key, ()))
        count = len({one.winner for one in given} - {one.winner for one in kept})
        if count:
            left_out[key] = count
    with_row = tuple(key for key in found if key in added.rows)
    return ImportedTable(path, added, with_row, left_out)


@dataclass(frozen=True, slots=True)
class Verification:
    """What measuring imported configs gave.

    ``report`` is that of the build. ``confirmed`` are keys whose imported config is the winner now,
    ``refuted`` those whose row has another winner or is not trusted, and ``open`` has, by key, why
    a config is still unverified.
    """

    report: BuildReport
    confirmed: tuple[str, ...]
    refuted: tuple[str, ...]
    open: dict[str, str]


def verify_imported(
    imported: ImportedTable,
    *,
    device: str = "auto",
    mode: str = DEFAULT_MODE,
    observer: Observer | None = None,
    **measuring: Any,
) -> Verification:
    """Measure the imported configs of the table and the library's kernels, and nothing else.

    Each key that could be measured has a row then, with the fastest of these, and no imported
    config any more. *measuring* are further arguments of `build_problems`.

    Raises as `build_problems` does.
    """
    before = imported.table.imported
    problems = [MissedProblem(key, kind_of(key).name, IMPORTED_REASON, 1) for key in before]
    still = dict.fromkeys(before, "no row was measured")
    report = build_problems(
        problems,
        out=imported.path,
        device=device,
        mode=mode,
        search=Search.IMPORTED,
        observer=observer,
        **measuring,
    )
    still |= {key: why for key, why in report.not_rebuilt.items() if key in still}
    still |= {key: why for key, why in report.not_tuned.items() if key in still}
    rows = {key: row for key, row in report.table.rows.items() if key in before}
    confirmed = tuple(key for key, row in rows.items() if _is_named(row, before[key]))
    refuted = tuple(key for key in rows if key not in confirmed)
    return Verification(
        report, confirmed, refuted, {key: why for key, why in still.items() if key not in rows}
    )


def _is_named(row: Row, configs: Iterable[ImportedConfig]) -> bool:
    """Whether one of *configs* is the trusted winner of *row*."""
    return row.untrusted is None and any(config.names(row.winner) for config in configs)
