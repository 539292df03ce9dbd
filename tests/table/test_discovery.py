"""Tables for this machine in known folders: which are taken, and what is remarked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sample_tables import make_key, make_row, make_rows, make_runtime, make_table

from warmup.core.errors import TableNotFoundError
from warmup.table.schema import Table
from warmup.table.store import FoundTable, discover, search_folders, write


def _discovered(folder: Path, **tables: Table | str) -> FoundTable:
    """Return what is discovered where *tables*, or texts, stand under the device's slug."""
    place = folder / "nvidia-h200"
    place.mkdir(exist_ok=True)
    for name, table in tables.items():
        if isinstance(table, Table):
            write(place / f"{name}.json", table)
        else:
            (place / f"{name}.json").write_text(table)
    return discover(make_runtime(), (folder,))


def test_the_first_folder_with_a_table_for_this_machine_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./tables`, the user data folder and the package's own; the error names them all."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first, second, third = search_folders()
    expected = (Path("tables"), tmp_path / "inductor-warmup" / "tables", "tables")
    assert (first, second, third.name) == expected
    folders = tuple(tmp_path / name for name in "abcd")
    with pytest.raises(TableNotFoundError) as caught:
        discover(make_runtime(), folders)
    assert caught.value.wanted == "no table for NVIDIA H200 (nvidia-h200)"
    assert caught.value.searched == tuple(str(folder / "nvidia-h200") for folder in folders)
    write(folders[1] / "nvidia-h200/old.json", make_table(runtime=make_runtime(torch="2.12.0")))
    for folder in folders[2:]:
        write(folder / "nvidia-h200" / "t.json", make_table())
    found = discover(make_runtime(), folders)
    left_out = f"{folders[1]}/nvidia-h200/old.json: left out: torch minor: table 2.12, here 2.13"
    assert (found.paths, found.remarks) == ((folders[2] / "nvidia-h200" / "t.json",), (left_out,))


def test_several_tables_become_one(tmp_path: Path) -> None:
    """The temporary file of a killed writer is none of them."""
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "nvidia-h200" / ".t.json.x1y2").write_text("{")
    found = _discovered(tmp_path, **{f"t{m}": make_table(make_rows(m)) for m in (3, 1, 2)})
    assert [path.name for path in found.paths] == ["t1.json", "t2.json", "t3.json"]
    assert (found.table.rows, found.remarks) == (make_rows(1, 2, 3), ())


def test_a_conflict_is_remarked_and_the_newer_row_taken(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    key = make_key()
    rows = [make_row("mm_old", BLOCK_M=1), make_row("mm_new", BLOCK_M=2)]
    older, newer = (
        make_table({key: row}, created=f"2026-01-0{day}T00:00:00Z")
        for day, row in enumerate(rows, start=1)
    )
    said = f"conflict: {key}: mm_old(BLOCK_M=1) or mm_new(BLOCK_M=2)"
    for tables in ({"a": older, "b": newer}, {"a": newer, "b": older}):
        found = _discovered(tmp_path_factory.mktemp("case"), **tables)
        assert (found.table.rows[key], found.remarks) == (rows[1], (said,))


def test_a_table_that_cannot_join_is_remarked_and_left_out(tmp_path: Path) -> None:
    policy = dataclasses.replace(make_table().policy, options={"freezing": True})
    found = _discovered(tmp_path, a=make_table(), b=make_table({}, policy=policy), c="{")
    place = tmp_path / "nvidia-h200"
    options, damage = found.remarks
    assert (found.paths, found.table) == ((place / "a.json",), make_table())
    assert options == f"{place}/b.json: left out: other inductor options than {place}/a.json"
    assert damage.startswith(f"{place}/c.json: ")
