"""Rows of earlier tables in a build: which are taken, which are refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import TableNotFoundError
from warmup.core.rows import Flag, Row
from warmup.table.codec import encode
from warmup.table.store import read, write
from warmup.tuning.progress import Progress
from warmup.tuning.report import (
    MEASURED_AGAIN,
    MEASURED_WORSE,
    NOT_TRUSTED,
    TEMPLATE_CHANGED,
    EarlierRows,
    Observer,
    RowSource,
    open_earlier,
    united_sources,
)

A, B = Path("a.json"), Path("b.json")


def spread(row: Row, share: float) -> Row:
    return replace(row, evidence=replace(row.evidence, spread=share))


def test_rows_that_a_build_needs_are_taken_unchanged(tmp_path: Path) -> None:
    """A row is taken when it is looked up and the table lacks it; the flush writes it to disk."""
    source, path = make_table(), tmp_path / "t.json"
    write(tmp_path / "a.json", source)
    earlier = open_earlier(
        [tmp_path / "a.json"], make_table({}), dict, measures_again=False, is_dry=False
    )
    assert earlier is not None
    progress = Progress(
        path=path,
        table=make_table({}),
        replaces=False,
        observer=Observer(),
        can_search=False,
        given_up={},
        measured_peaks=lambda: None,
        earlier=earlier,
    )
    assert (len(progress.rows), progress.must_tune(make_key(560))) == (0, False)
    assert progress.must_tune(make_key(7))
    progress.flush()
    assert read(path).rows == {make_key(560): source.rows[make_key(560)]}
    assert encode(read(path)) == encode(make_table({make_key(560): source.rows[make_key(560)]}))
    assert earlier.used() == (RowSource(tmp_path / "a.json", (make_key(560),)),)
    assert earlier.used([make_key(560)])[0].taken == ()  # measured after all, searched further


def test_each_row_that_is_not_taken_has_its_reason() -> None:
    """Untrusted here or in another table, another source of the template, measured worse."""
    key, sources = make_key(), {"triton_mm": "0123456789abcdef"}
    good, other = make_row(), make_row(BLOCK_M=16)
    bad = replace(good, untrusted="wrong")
    stale = replace(good, winner=replace(good.winner, source_hash="fedcba9876543210"))
    noisy, quiet = spread(good, 0.2), spread(other, 0.01)
    cases: dict[str, tuple[Row, Row, Row | None, dict[Path, str]]] = {
        "only one is there": (good, good, good, {B: MEASURED_WORSE}),
        "not trusted": (bad, bad, None, {A: NOT_TRUSTED, B: NOT_TRUSTED}),
        "not trusted by another": (good, bad, None, {A: NOT_TRUSTED, B: NOT_TRUSTED}),
        "another winner": (bad, other, other, {A: NOT_TRUSTED}),
        "changed": (stale, stale, None, {A: TEMPLATE_CHANGED, B: TEMPLATE_CHANGED}),
        "current": (stale, good, good, {A: TEMPLATE_CHANGED}),
        "better": (noisy, quiet, quiet, {A: MEASURED_WORSE}),
    }
    for name, (of_a, of_b, taken, refused) in cases.items():
        tables = {A: make_table({key: of_a}), B: make_table({key: of_b})}
        earlier = EarlierRows(tables, make_table({}), sources)
        assert earlier.take(key) == taken, name
        assert earlier.take(key) == taken, name  # the second answer is the first
        found = {one.path: one.refused[key] for one in earlier.used() if one.refused}
        assert found == refused, name
        assert sum(len(one.taken) for one in earlier.used()) == (taken is not None), name


def test_a_table_that_does_not_fit_is_refused_whole() -> None:
    """Another device, minor of torch or Triton, or policy; patch versions and drivers fit."""
    policy = make_table().policy
    cases: dict[str, tuple[Mapping[str, Any], str]] = {
        "device": ({"runtime": make_runtime(sm_count=78)}, "device.sm_count: table 78, here 132"),
        "torch": ({"runtime": make_runtime(torch="2.11.0")}, "torch minor: table 2.11, here 2.13"),
        "driver": ({"runtime": make_runtime(driver="581")}, ""),
        "mode": ({"policy": replace(policy, mode="max-autotune")}, "policy mode"),
    }
    for name, (changes, reason) in cases.items():
        runtime = {key: changes[key] for key in changes if key == "runtime"}
        table = replace(make_table(**runtime), policy=changes.get("policy", policy))
        earlier = EarlierRows({A: table}, make_table({}), {})
        assert (earlier.take(make_key()) is None) == bool(reason), name
        (source,) = earlier.used()
        assert len(source.refused) == (len(table.rows) if reason else 0), name
        assert all(reason in why for why in source.reasons), name
        assert sum(source.reasons.values()) == len(source.refused), name


def test_nothing_is_taken_where_the_build_measures_again() -> None:
    """`--force` and `--retry`; the report says so for every row."""
    earlier = EarlierRows({A: make_table()}, make_table({}), {}, measures_again=True)
    assert earlier.take(make_key()) is None
    assert earlier.used()[0].reasons == {MEASURED_AGAIN: 2}


def test_a_file_that_is_no_table_ends_the_build(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        open_earlier([tmp_path / "a.json"], make_table({}), dict, measures_again=False, is_dry=True)


def test_what_two_builds_of_a_table_used_is_united() -> None:
    """A plan and its build: what the build took is not refused."""
    plan = (RowSource(A, ("k", "l"), {"m": "r", "n": "r"}), RowSource(B))
    build = (RowSource(A, ("l", "m"), {}), RowSource(B, (), {"o": "s"}))
    assert united_sources(plan, build) == (
        RowSource(A, ("k", "l", "m"), {"n": "r"}),
        RowSource(B, (), {"o": "s"}),
    )


def test_flagged_rows_are_rows() -> None:
    """An unstable row is taken with its flag, as a row of the build's own table would stay."""
    row = make_row()
    row = replace(row, evidence=replace(row.evidence, flags=(Flag.UNSTABLE,)))
    assert (
        EarlierRows({A: make_table({make_key(): row})}, make_table({}), {}).take(make_key()) == row
    )
