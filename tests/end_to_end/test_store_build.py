"""`warmup build --store`: rows of a store are taken, the rest is tuned and added."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Row
from warmup.table.row_store import RowStore
from warmup.table.row_store.table_view import view_like
from warmup.table.store import read

MODEL = Path(__file__).resolve().parents[1] / "programs" / "models" / "plain_script.py"
Shared = tuple[dict[str, Row], dict[str, Any], dict[str, Row], RowStore]


@pytest.fixture(scope="module")
def shared(
    net: tuple[Path, dict[str, Any]],
    run_once: Callable[..., tuple[Path, str]],
    tmp_path_factory: pytest.TempPathFactory,
    variables: dict[str, str],
) -> Shared:
    """The rows of a store that lacks one row of a model; the build from it, its rows, the store."""
    store = RowStore(str(tmp_path_factory.getbasetemp() / "rows"))
    table = read(net[0])
    stored = dict(sorted(table.rows.items())[1:])
    store.add(replace(table, rows=stored))
    words = ["-m", "warmup", "build", "--json", "--device", "cpu", "--model", f"{MODEL}:Net"]
    words += ["--input", "x=[seqlen,32]:f32", "--seqlens", "8", "--out", "other.json"]
    folder, said = run_once("store-build", *words, "--store", store.location, **variables)
    return stored, json.loads(said), dict(read(folder / "other.json").rows), store


def test_what_the_store_has_is_taken_and_the_rest_is_tuned(shared: Shared) -> None:
    """Rows of the store are those of the table, evidence included; the one it lacks is measured."""
    stored, report, rows, _ = shared
    assert set(report["taken"]) == stored.keys()
    assert [one["key"] for one in report["problems"]] == [*(rows.keys() - stored.keys())]
    assert {key: rows[key] for key in stored} == stored


def test_what_was_tuned_is_in_the_store(shared: Shared, net: tuple[Path, dict[str, Any]]) -> None:
    """The next model of the family needs no measurement for any of these problems."""
    *_, rows, store = shared
    view = view_like(store, read(net[0]))
    assert (view.table.rows, view.missing) == (rows, ())
