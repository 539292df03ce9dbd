"""Tables for this machine in known folders: which are taken, and what is remarked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import TableNotFoundError
from warmup.table.store import discover, search_folders, write

KEY = "mm m=1 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"


def test_the_working_folder_is_searched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./tables`, the user data folder and the package's own are searched in that order."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first, second, third = search_folders()
    expected = (Path("tables"), tmp_path / "inductor-warmup" / "tables", "tables")
    assert (first, second, third.name) == expected


def test_the_first_folder_with_a_table_wins(tmp_path: Path) -> None:
    for name in ("b", "c"):
        write(tmp_path / name / "nvidia-h200" / "t.json", make_table())
    found = discover(make_runtime(), (tmp_path / "a", tmp_path / "b", tmp_path / "c"))
    assert found.paths == (tmp_path / "b" / "nvidia-h200" / "t.json",)


def test_a_folder_with_only_foreign_tables_is_passed_over(tmp_path: Path) -> None:
    """A table for another torch minor is remarked and the next folder is searched."""
    old = make_table(runtime=make_runtime(torch="2.12.0"))
    write(tmp_path / "a" / "nvidia-h200" / "old.json", old)
    write(tmp_path / "b" / "nvidia-h200" / "t.json", make_table())
    found = discover(make_runtime(), (tmp_path / "a", tmp_path / "b"))
    left_out = f"{tmp_path}/a/nvidia-h200/old.json: left out: torch minor: table 2.12, here 2.13"
    assert (found.table, found.remarks) == (make_table(), (left_out,))


def test_several_tables_become_one(tmp_path: Path) -> None:
    """All tables for this machine in a folder are united; their paths are sorted."""
    folder = tmp_path / "nvidia-h200"
    for m in (3, 1, 2):
        write(folder / f"{m}.json", make_table({make_key(m): make_row()}))
    found = discover(make_runtime(), (tmp_path,))
    assert (found.paths, set(found.table.rows), found.remarks) == (
        tuple(folder / f"{m}.json" for m in (1, 2, 3)),
        {make_key(m) for m in (1, 2, 3)},
        (),
    )


def test_a_conflict_is_remarked_and_the_newer_row_taken(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of two different winners the later table's is used, with a remark."""
    for names in (("a", "b"), ("b", "a")):
        tmp_path = tmp_path_factory.mktemp("case")
        rows = [make_row("mm_old", BLOCK_M=1), make_row("mm_new", BLOCK_M=2)]
        for name, row, day in zip(names, rows, ("01", "02"), strict=True):
            table = make_table({KEY: row}, created=f"2026-01-{day}T00:00:00Z")
            write(tmp_path / "nvidia-h200" / f"{name}.json", table)
        found = discover(make_runtime(), (tmp_path,))
        said = f"conflict: {KEY}: mm_old(BLOCK_M=1) or mm_new(BLOCK_M=2)"
        assert (found.table.rows[KEY], found.remarks) == (rows[1], (said,)), names


def test_a_table_with_other_options_is_remarked_and_left_out(tmp_path: Path) -> None:
    policy = dataclasses.replace(make_table().policy, options={"freezing": True})
    write(tmp_path / "nvidia-h200" / "1.json", make_table())
    write(tmp_path / "nvidia-h200" / "2.json", make_table({}, policy=policy))
    found = discover(make_runtime(), (tmp_path,))
    first, second = (tmp_path / "nvidia-h200" / name for name in ("1.json", "2.json"))
    assert (found.paths, found.remarks) == (
        (first,),
        (f"{second}: left out: other inductor options than {first}",),
    )


def test_a_damaged_table_is_remarked_and_left_out(tmp_path: Path) -> None:
    write(tmp_path / "nvidia-h200" / "good.json", make_table())
    (tmp_path / "nvidia-h200" / "bad.json").write_text("{")
    found = discover(make_runtime(), (tmp_path,))
    (remark,) = found.remarks
    assert (found.table, remark.split(":")[0]) == (
        make_table(),
        str(tmp_path / "nvidia-h200" / "bad.json"),
    )


def test_an_interrupted_writers_file_is_no_table(tmp_path: Path) -> None:
    """The temporary file of a killed writer is neither used nor remarked."""
    write(tmp_path / "nvidia-h200" / "t.json", make_table())
    (tmp_path / "nvidia-h200" / ".t.json.x1y2").write_text("{")
    found = discover(make_runtime(), (tmp_path,))
    assert (len(found.paths), found.remarks) == (1, ())


def test_nothing_found_says_where_it_looked(tmp_path: Path) -> None:
    """The error names the device, its slug and every folder."""
    with pytest.raises(TableNotFoundError) as caught:
        discover(make_runtime(), (tmp_path / "a", tmp_path / "b"))
    assert (caught.value.wanted, caught.value.searched) == (
        "no table for NVIDIA H200 (nvidia-h200)",
        (str(tmp_path / "a" / "nvidia-h200"), str(tmp_path / "b" / "nvidia-h200")),
    )
