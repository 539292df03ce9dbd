"""``launch_search``, ``reduction_search`` and ``split_search``: what was measured everywhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from warmup.core.errors import TableFormatError, TableMergeError
from warmup.core.events import Emitter
from warmup.table import Table
from warmup.table.codec import decode, digest_of, encode
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.merge import combine, merge
from warmup.table.policy import PolicyOptions, choose_policy

MakeTable = Callable[..., Table]


@pytest.fixture(params=["launch_search", "reduction_search", "split_search"])
def name(request: pytest.FixtureRequest) -> str:
    """The field of the policy."""
    return str(request.param)


def searched(table: Table, name: str) -> Table:
    """Return *table* as a build on a GPU writes it, with the field *name*."""
    changes: dict[str, Any] = {name: True}
    return dataclasses.replace(table, policy=dataclasses.replace(table.policy, **changes))


def test_only_a_searched_table_says_so(make_table: MakeTable, name: str) -> None:
    """The field is read back; without it a table reads as before, and has the same digest."""
    table = make_table()
    assert decode(encode(searched(table, name)), "t.json") == searched(table, name)
    assert json.loads(encode(searched(table, name)))["policy"][name] is True
    assert name not in json.loads(encode(table))["policy"]
    assert not getattr(decode(encode(table), "t.json").policy, name)
    assert digest_of(table) != digest_of(searched(table, name))


@pytest.mark.parametrize("value", [False, 1, "true", None])
def test_anything_but_true_is_refused(make_table: MakeTable, name: str, value: object) -> None:
    """A field that is false is not written, so it was not written by a build."""
    document = json.loads(encode(searched(make_table(), name)))
    document["policy"][name] = value
    with pytest.raises(TableFormatError) as caught:
        decode(json.dumps(document), "t.json")
    assert caught.value.pointer == f"/policy/{name}"


@pytest.mark.parametrize(("device", "wanted"), [("cuda", True), ("cpu", False)])
def test_every_build_on_a_gpu_searches(name: str, device: str, *, wanted: bool) -> None:
    """Whatever the mode; a CPU's kernels have no launch config, and reduce without Triton."""
    for mode in ("max-autotune-gemm", "max-autotune"):
        assert getattr(choose_policy(PolicyOptions(mode=mode), device, {}), name) is wanted


def test_tables_searched_differently_are_not_merged(make_table: MakeTable, name: str) -> None:
    """Their rows were chosen among other configs."""
    with pytest.raises(TableMergeError, match=name):
        merge(make_table(), searched(make_table(), name))


def test_tables_found_together_are_searched_if_all_are(make_table: MakeTable, name: str) -> None:
    """Else a kernel that an older build had no row for would be a miss."""
    table = make_table()
    assert getattr(combine([searched(table, name), searched(table, name)])[0].policy, name)
    assert not getattr(combine([searched(table, name), table])[0].policy, name)
    assert not getattr(combine([table, searched(table, name)])[0].policy, name)


def test_a_lookup_is_told_by_its_caller(name: str) -> None:
    """Without a word nothing more is asked than before."""
    given: dict[str, Any] = {name: True}
    assert not getattr(Lookup({}, OnMiss.STRICT, Emitter([])), name)
    assert getattr(Lookup({}, OnMiss.STRICT, Emitter([]), **given), name)
