"""``launch_search`` in a table's policy: whether every launch config of the table was searched."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from warmup.core.errors import TableFormatError, TableMergeError
from warmup.core.events import Emitter
from warmup.table import Table
from warmup.table.codec import decode, digest_of, encode
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.merge import combine, merge
from warmup.table.policy import PolicyOptions, choose_policy

MakeTable = Callable[..., Table]


def searched(table: Table) -> Table:
    """Return *table* as a build on a GPU writes it."""
    return dataclasses.replace(table, policy=dataclasses.replace(table.policy, launch_search=True))


def test_only_a_searched_table_says_so(make_table: MakeTable) -> None:
    """The field is read back; without it a table reads as before, and has the same digest."""
    table = make_table()
    assert decode(encode(searched(table)), "t.json") == searched(table)
    assert json.loads(encode(searched(table)))["policy"]["launch_search"] is True
    assert "launch_search" not in json.loads(encode(table))["policy"]
    assert not decode(encode(table), "t.json").policy.launch_search
    assert digest_of(table) != digest_of(searched(table))


@pytest.mark.parametrize("value", [False, 1, "true", None])
def test_anything_but_true_is_refused(make_table: MakeTable, value: object) -> None:
    """A field that is false is not written, so it was not written by a build."""
    document = json.loads(encode(searched(make_table())))
    document["policy"]["launch_search"] = value
    with pytest.raises(TableFormatError) as caught:
        decode(json.dumps(document), "t.json")
    assert caught.value.pointer == "/policy/launch_search"


@pytest.mark.parametrize(("device", "wanted"), [("cuda", True), ("cpu", False)])
def test_every_build_on_a_gpu_searches(device: str, *, wanted: bool) -> None:
    """Whatever the mode; a CPU's kernels have no launch config."""
    for mode in ("max-autotune-gemm", "max-autotune"):
        assert choose_policy(PolicyOptions(mode=mode), device, {}).launch_search is wanted


def test_tables_that_were_searched_differently_are_not_merged(make_table: MakeTable) -> None:
    """Their rows were chosen among other configs."""
    with pytest.raises(TableMergeError, match="launch_search"):
        merge(make_table(), searched(make_table()))


def test_tables_found_together_are_searched_if_all_are(make_table: MakeTable) -> None:
    """Else a kernel that an older build had no row for would be a miss."""
    table = make_table()
    assert combine([searched(table), searched(table)])[0].policy.launch_search
    assert not combine([searched(table), table])[0].policy.launch_search
    assert not combine([table, searched(table)])[0].policy.launch_search


def test_a_lookup_is_told_by_its_caller() -> None:
    """Without a word a single listed config is no decision, as before."""
    assert not Lookup({}, OnMiss.STRICT, Emitter([])).launch_search
    assert Lookup({}, OnMiss.STRICT, Emitter([]), launch_search=True).launch_search
