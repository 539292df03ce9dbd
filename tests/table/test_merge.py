"""Union and difference of tables: conflicts, preferences, and what was measured everywhere."""

from __future__ import annotations

import dataclasses
import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import TableFormatError, TableMergeError
from warmup.core.method import L2, Method
from warmup.core.rows import Flag, Row
from warmup.table.codec import decode, digest_of, encode
from warmup.table.merge import combine, diff, merge
from warmup.table.schema import SEARCH_FIELDS, Policy, Table

Rows = dict[str, Row]
KEY = "mm m=1 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"


@given(data=st.data())
def test_without_conflicts_the_order_does_not_matter(
    data: st.DataObject, row_sets: st.SearchStrategy[Rows]
) -> None:
    """Tables that agree on the winners have one union, whichever is named first."""
    a, b = data.draw(row_sets), data.draw(row_sets)
    agreed = {k: row for k, row in b.items() if k not in a or a[k].winner == row.winner}
    one, other = make_table(a), make_table(agreed)
    assert merge(one, other) == merge(other, one)


@given(data=st.data())
def test_every_conflict_is_named(data: st.DataObject, row_sets: st.SearchStrategy[Rows]) -> None:
    """Without a preference the error names each key with two winners, and no other key."""
    a, b = data.draw(row_sets), data.draw(row_sets)
    disputed = {key for key in a.keys() & b.keys() if a[key].winner != b[key].winner}
    try:
        merge(make_table(a), make_table(b))
    except TableMergeError as error:
        said = {line.split(": ")[0] for line in error.conflicts}
    else:
        said = set()
    assert said == disputed


def test_a_preference_settles_conflicts() -> None:
    """Prefer a or b takes that table's row, faster the lower time and a's row on a tie."""
    for prefer, times, taken in (
        ("a", (9.0, 1.0), "mm_a"),
        ("b", (1.0, 9.0), "mm_b"),
        ("faster", (1.0, 9.0), "mm_a"),
        ("faster", (9.0, 1.0), "mm_b"),
        ("faster", (5.0, 5.0), "mm_a"),
    ):
        a, b = (
            make_table({KEY: make_row(uid, time)})
            for uid, time in zip(("mm_a", "mm_b"), times, strict=True)
        )
        assert merge(a, b, prefer).rows[KEY].winner.uid == taken


UNSTABLE = {"flags": (Flag.UNSTABLE,)}


def test_the_better_measured_row_is_taken() -> None:
    """Of two rows with one winner, and of two winners if asked, whichever table is named first."""
    for (case, (worse, better)), prefer in product(
        {
            "unstable": ({"time_us": 1.0, **UNSTABLE}, {"time_us": 9.0}),
            "spread": ({"time_us": 1.0, "spread": 0.08}, {"time_us": 9.0, "spread": 0.04}),
            "both steady": ({"time_us": 9.0, "spread": 0.001}, {"time_us": 1.0, "spread": 0.029}),
            "over the peak": (
                {"time_us": 1.0, "flags": (Flag.OVER_PEAK,)},
                {"time_us": 9.0, "spread": 0.09},
            ),
            "no control": ({"time_us": 1.0, "library_us": None}, {"time_us": 9.0}),
            "both unstable": ({"spread": 0.3, **UNSTABLE}, {"spread": 0.2, **UNSTABLE}),
        }.items(),
        (None, "evidence"),
    ):
        uids = ("mm", "mm") if prefer is None else ("mm_a", "mm_b")
        bad, good = (
            dataclasses.replace(row, evidence=dataclasses.replace(row.evidence, **changes))
            for row, changes in zip(
                (make_row(uids[0]), make_row(uids[1])), (worse, better), strict=True
            )
        )
        a, b = make_table({KEY: bad}), make_table({KEY: good})
        assert merge(a, b, prefer).rows[KEY] == merge(b, a, prefer).rows[KEY] == good, (
            case,
            prefer,
        )


def test_tables_of_another_runtime_are_refused() -> None:
    """With any preference tables of different devices, torch or Triton minors are refused."""
    for changes, prefer in product(
        ({"sm_count": 78}, {"arch": "sm_100"}, {"torch": "2.14.0"}, {"triton": "3.8.0"}),
        (None, "a", "b", "evidence", "faster"),
    ):
        other = make_table({}, runtime=make_runtime(**changes))
        with pytest.raises(TableMergeError, match="one device, runtime and policy"):
            merge(make_table(), other, prefer)


def test_tables_of_another_policy_are_refused() -> None:
    for changes in (
        {"mode": "max-autotune"},
        {"timing": Method(l2=L2.WARM)},
        {"seed": 1},
        {"options": {}},
        {"tolerance": {"bf16": 0.5}},
    ):
        policy = dataclasses.replace(make_table().policy, **changes)  # type: ignore[arg-type]
        with pytest.raises(TableMergeError):
            merge(make_table(), make_table({}, policy=policy))


def test_the_union_is_as_old_as_its_first_row() -> None:
    """The union has the creation time of the older table, in either order."""
    for is_swapped in (False, True):
        pair = (
            make_table(created="2026-01-01T00:00:00Z"),
            make_table(created="2026-02-01T00:00:00Z"),
        )
        union = merge(*(pair[::-1] if is_swapped else pair))
        assert union.provenance.created == "2026-01-01T00:00:00Z", is_swapped


def test_a_difference_says_what_is_where() -> None:
    """Keys of one table only and changed winners are listed, in natural order."""
    same, old, new = make_row("mm_same"), make_row("mm_old"), make_row("mm_new")
    a = {make_key(128): same, make_key(16): same, make_key(1): old, make_key(2): same}
    b = {make_key(1): new, make_key(2): same, make_key(9): same}
    found = diff(make_table(a), make_table(b))
    assert (found.only_a, found.only_b, found.changed) == (
        (make_key(16), make_key(128)),
        (make_key(9),),
        ((make_key(1), old, new),),
    )


def test_a_difference_names_the_runtime_and_the_policy() -> None:
    for changes, said in (
        ({"driver": "999"}, "driver: 580.65 and 999"),
        ({"sm_count": 78}, "device.sm_count: 132 and 78"),
        ({"name": "H200 NVL"}, "device.name: NVIDIA H200 and H200 NVL"),
    ):
        assert diff(make_table(), make_table(runtime=make_runtime(**changes))).context == (said,)
    # A difference names the policy.
    for changes, said in (
        ({"mode": "max-autotune"}, "policy mode: max-autotune-gemm and max-autotune"),
        ({"options": {"dynamic_scale_rblock": False}}, "max_autotune_gemm_backends"),
        ({"tolerance": {"bf16": 0.5, "f32": 0.0001}}, "tolerance"),
    ):
        policy = dataclasses.replace(make_table().policy, **changes)  # type: ignore[arg-type]
        context = diff(make_table(), make_table(policy=policy)).context
        assert [said in line for line in context] == [True], changes


def test_combining_takes_the_newest_and_tells_each_conflict() -> None:
    """Three tables with three winners for a key give the newest row and a line per change."""
    rows = [make_row(f"mm_{n}", BLOCK_M=n) for n in (1, 2, 3)]
    tables = [
        make_table({make_key(): row}, created=f"2026-01-0{n}T00:00:00Z")
        for n, row in zip((1, 2, 3), rows, strict=True)
    ]
    union, conflicts = combine([tables[2], tables[0], tables[1]])
    assert (union.rows, conflicts) == (
        {make_key(): rows[2]},
        (
            f"{make_key()}: mm_1(BLOCK_M=1) or mm_2(BLOCK_M=2)",
            f"{make_key()}: mm_2(BLOCK_M=2) or mm_3(BLOCK_M=3)",
        ),
    )


def has(policy: Policy, name: str) -> bool:
    """Return whether *policy* has the kind of the field *name*."""
    return name in {SEARCH_FIELDS[kind] for kind in policy.searches}


def searched(table: Table, name: str) -> Table:
    """Return *table* as a build on a GPU writes it, with the field *name*."""
    kinds = frozenset(kind for kind, field in SEARCH_FIELDS.items() if field == name)
    return dataclasses.replace(table, policy=dataclasses.replace(table.policy, searches=kinds))


def test_only_a_searched_table_says_so() -> None:
    """The field is read back as true, and nothing else; without it the digest is as before."""
    table = make_table()
    for name in SEARCH_FIELDS.values():
        text = encode(searched(table, name))
        assert decode(text, "t.json") == searched(table, name), name
        assert json.loads(text)["policy"][name] is True, name
        assert name not in json.loads(encode(table))["policy"]
        assert not has(decode(encode(table), "t.json").policy, name)
        assert digest_of(table) != digest_of(searched(table, name)), name
        for value in (False, 1, "true", None):
            document = json.loads(text)
            document["policy"][name] = value
            with pytest.raises(TableFormatError) as caught:
                decode(json.dumps(document), "t.json")
            assert caught.value.pointer == f"/policy/{name}", value


def test_tables_searched_differently_are_not_merged() -> None:
    """Their rows were chosen among other configs: a table is searched if all of a union are."""
    table = make_table()
    for name in SEARCH_FIELDS.values():
        with pytest.raises(TableMergeError, match=name):
            merge(table, searched(table, name))
        for others, is_searched in (
            ([searched(table, name), searched(table, name)], True),
            ([searched(table, name), table], False),
            ([table, searched(table, name)], False),
        ):
            assert has(combine(others)[0].policy, name) is is_searched, name
