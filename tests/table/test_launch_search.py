"""``launch_search`` and its like, ``searches`` of a policy: what was measured everywhere."""

from __future__ import annotations

import dataclasses
import json

import pytest
from sample_tables import make_table

from warmup.core.errors import TableFormatError, TableMergeError
from warmup.table import Policy, Table
from warmup.table.codec import decode, digest_of, encode
from warmup.table.merge import combine, merge
from warmup.table.policy import PolicyOptions, choose_policy
from warmup.table.schema import SEARCH_FIELDS


@pytest.fixture(params=list(SEARCH_FIELDS.values()))
def name(request: pytest.FixtureRequest) -> str:
    """The field of the policy."""
    return str(request.param)


def has(policy: Policy, name: str) -> bool:
    """Return whether *policy* has the kind of the field *name*."""
    return name in {SEARCH_FIELDS[kind] for kind in policy.searches}


def searched(table: Table, name: str) -> Table:
    """Return *table* as a build on a GPU writes it, with the field *name*."""
    kinds = frozenset(kind for kind, field in SEARCH_FIELDS.items() if field == name)
    return dataclasses.replace(table, policy=dataclasses.replace(table.policy, searches=kinds))


def test_only_a_searched_table_says_so(name: str) -> None:
    """The field is read back; without it a table reads as before, and has the same digest."""
    table = make_table()
    assert decode(encode(searched(table, name)), "t.json") == searched(table, name)
    assert json.loads(encode(searched(table, name)))["policy"][name] is True
    assert name not in json.loads(encode(table))["policy"]
    assert not has(decode(encode(table), "t.json").policy, name)
    assert digest_of(table) != digest_of(searched(table, name))


@pytest.mark.parametrize("value", [False, 1, "true", None])
def test_anything_but_true_is_refused(name: str, value: object) -> None:
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
        assert has(choose_policy(PolicyOptions(mode=mode), device, {}), name) is wanted


def test_tables_searched_differently_are_not_merged(name: str) -> None:
    """Their rows were chosen among other configs."""
    with pytest.raises(TableMergeError, match=name):
        merge(make_table(), searched(make_table(), name))


def test_tables_found_together_are_searched_if_all_are(name: str) -> None:
    """Else a kernel that an older build had no row for would be a miss."""
    table = make_table()
    assert has(combine([searched(table, name), searched(table, name)])[0].policy, name)
    assert not has(combine([searched(table, name), table])[0].policy, name)
    assert not has(combine([table, searched(table, name)])[0].policy, name)
