"""Union and difference of tables: conflicts, preferences, and what was measured everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import TableMergeError
from warmup.core.rows import L2, Flag, Method, Row
from warmup.table.merge import Preference, combine, diff, merge
from warmup.table.schema import Table

Rows = dict[str, Row]
KEY = make_key()
UNSTABLE = {"flags": (Flag.UNSTABLE,)}
PREFERENCES: tuple[Preference | None, ...] = (None, "a", "b", "evidence", "faster")
OTHER_POLICIES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"mode": "max-autotune"}, "policy mode: max-autotune-gemm and max-autotune"),
    ({"timing": Method(l2=L2.WARM)}, "l2"),
    ({"seed": 1}, "seed"),
    ({"options": {"dynamic_scale_rblock": False}}, "max_autotune_gemm_backends"),
    ({"tolerance": {"bf16": 0.5, "f32": 0.0001}}, "tolerance"),
)


def with_policy(changes: dict[str, Any]) -> Table:
    return make_table(policy=replace(make_table().policy, **changes))


@given(data=st.data())
def test_the_union_has_every_row_and_names_every_conflict(
    data: st.DataObject, row_sets: st.SearchStrategy[Rows]
) -> None:
    """Without a preference each key with two winners; where there is none, in any order."""
    a, b = make_table(data.draw(row_sets)), make_table(data.draw(row_sets))
    before = dict(a.rows), dict(b.rows)
    shared = a.rows.keys() & b.rows.keys()
    disputed = {key for key in shared if a.rows[key].winner != b.rows[key].winner}
    for prefer in PREFERENCES:
        said: set[str] = set()
        try:
            union = merge(a, b, prefer)
        except TableMergeError as error:
            said = {line.split(": ")[0] for line in error.conflicts}
        else:
            assert union.rows.keys() == a.rows.keys() | b.rows.keys()
            assert prefer or union == merge(b, a)
        assert said == (set() if prefer else disputed), prefer
    there, back = diff(a, b), diff(b, a)
    mirrored = tuple((key, new, old) for key, old, new in back.changed)
    assert (there.only_a, there.only_b, there.changed) == (back.only_b, back.only_a, mirrored)
    assert {key for key, *_ in there.changed} == disputed
    assert (a.rows, b.rows) == before


def test_a_preference_settles_conflicts() -> None:
    """Prefer a or b takes that table's row, faster the lower time and a's row on a tie."""
    cases: tuple[tuple[Preference, tuple[float, float], str], ...] = (
        ("a", (9.0, 1.0), "mm_a"),
        ("b", (1.0, 9.0), "mm_b"),
        ("faster", (1.0, 9.0), "mm_a"),
        ("faster", (9.0, 1.0), "mm_b"),
        ("faster", (5.0, 5.0), "mm_a"),
    )
    for prefer, times, taken in cases:
        a, b = (
            make_table({KEY: make_row(uid, time)})
            for uid, time in zip(("mm_a", "mm_b"), times, strict=True)
        )
        assert merge(a, b, prefer).rows[KEY].winner.uid == taken, (prefer, times)


def test_the_better_measured_row_is_taken() -> None:
    """Of two rows with one winner, and of two winners on demand, whichever table is first."""
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "unstable": ({"time_us": 1.0, **UNSTABLE}, {"time_us": 9.0}),
        "spread": ({"time_us": 1.0, "spread": 0.08}, {"time_us": 9.0, "spread": 0.04}),
        "both steady": ({"time_us": 9.0, "spread": 0.001}, {"time_us": 1.0, "spread": 0.029}),
        "over the peak": (
            {"time_us": 1.0, "flags": (Flag.OVER_PEAK,)},
            {"time_us": 9.0, "spread": 0.09},
        ),
        "no control": ({"time_us": 1.0, "library_us": None}, {"time_us": 9.0}),
        "both unstable": ({"spread": 0.3, **UNSTABLE}, {"spread": 0.2, **UNSTABLE}),
        "alike": ({"time_us": 9.0}, {"time_us": 1.0}),
    }
    for case, changes in cases.items():
        for prefer, uids in ((None, ("mm", "mm")), ("evidence", ("mm_a", "mm_b"))):
            bad, good = (
                replace(row, evidence=replace(row.evidence, **fields))
                for row, fields in zip(map(make_row, uids), changes, strict=True)
            )
            a, b = make_table({KEY: bad}), make_table({KEY: good})
            assert merge(a, b, prefer).rows[KEY] == good, (case, prefer)
            assert merge(b, a, prefer).rows[KEY] == good, (case, prefer)


def test_tables_of_another_device_runtime_or_policy_are_refused() -> None:
    """With any preference; a newer driver or library is no obstacle."""
    changes = ({"sm_count": 78}, {"arch": "sm_100"}, {"torch": "2.14.0"}, {"triton": "3.8.0"})
    others = [make_table({}, runtime=make_runtime(**fields)) for fields in changes]  # type: ignore[arg-type]
    others += [with_policy(fields) for fields, _ in OTHER_POLICIES]
    for other in others:
        for prefer in PREFERENCES:
            with pytest.raises(TableMergeError, match="one device, runtime and policy"):
                merge(make_table(), other, prefer)
    newer = make_table({}, runtime=make_runtime(driver="999", cublas="14"))
    assert merge(make_table(), newer).rows == make_table().rows


def test_a_difference_says_what_is_where() -> None:
    """Keys of one table only and changed winners, in natural order; times are no difference."""
    same, old, new = make_row("mm_same", 1.0), make_row("mm_old"), make_row("mm_new")
    a = {make_key(128): same, make_key(16): same, make_key(1): old, make_key(2): same}
    b = {make_key(1): new, make_key(2): make_row("mm_same", 2.0), make_key(9): same}
    found = diff(make_table(a), make_table(b))
    assert found.only_a == (make_key(16), make_key(128))
    assert found.only_b == (make_key(9),)
    assert found.changed == ((make_key(1), old, new),)


def test_discovery_takes_the_newest_row_and_tells_each_conflict() -> None:
    rows = [make_row(f"mm_{n}", BLOCK_M=n) for n in (1, 2, 3)]
    tables = [
        make_table({KEY: row}, created=f"2026-01-0{n}T00:00:00Z")
        for n, row in enumerate(rows, start=1)
    ]
    union, conflicts = combine([tables[2], tables[0], tables[1]])
    assert union.rows == {KEY: rows[2]}
    assert conflicts == (
        f"{KEY}: mm_1(BLOCK_M=1) or mm_2(BLOCK_M=2)",
        f"{KEY}: mm_2(BLOCK_M=2) or mm_3(BLOCK_M=3)",
    )
