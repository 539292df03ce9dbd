"""What a build says about its own times, and about winners that need an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table

pytest.importorskip("torch")

from warmup.cli.build_render import MEASURE_ALL, is_undecided, spell, spell_belief
from warmup.cli.tables import spell_table
from warmup.core.device import MachineState
from warmup.core.rows import Flag, Tuned
from warmup.tuning.report import BuildReport

QUIET = MachineState(measured=4, cpus=2.0, worst_share=0.03)


def report(
    rows: Mapping[int, Mapping[str, Any]], now: tuple[int, ...] = (), **fields: Any
) -> BuildReport:
    """``report({16: {"flags": ...}, 32: {}}, now=[16], ...)``: a build with these rows by m."""
    made = {
        make_key(m): replace(row, evidence=replace(row.evidence, **changes))
        for m, changes in rows.items()
        for row in (make_row(),)
    }
    timings = tuple(Tuned(make_key(m), made[make_key(m)], ()) for m in now)
    fields = {"machine": QUIET, **fields}
    return BuildReport(Path("t.json"), make_table(made), "0" * 64, (), timings, 1.0, **fields)


NOISY: Mapping[str, Any] = {"flags": (Flag.UNSTABLE,)}


def test_times_of_a_quiet_machine_can_be_believed() -> None:
    """One line, with the largest share that other processes took."""
    assert [*spell_belief(report({16: {}}, (16,)))] == [
        "times of this build can be believed: other processes took up to 3% of 2 CPUs"
    ]


def test_what_disturbed_makes_times_doubtful() -> None:
    for case, (state, words) in {
        "load": (
            {"disturbed": 3, "worst_share": 0.98},
            "other processes took up to 98% of 2 CPUs, too much in 3 of 4 measurements",
        ),
        "throttled": (
            {"complaints": ("its clock is throttled: hardware slowdown",)},
            "its clock is throttled: hardware slowdown",
        ),
    }.items():
        (line,) = spell_belief(report({16: {}}, (16,), machine=replace(QUIET, **state)))
        assert line == f"times of this build are doubtful: {words}", case


def test_unstable_rows_are_counted_and_can_be_measured_again() -> None:
    """Those measured now make the times doubtful; all asked for are listed, with the remedy."""
    rows = {16: NOISY, 32: NOISY, 64: {}, 128: NOISY}
    known = (make_key(32), make_key(64))
    belief, *listed, others, remedy = spell_belief(report(rows, (16,), known=known))
    assert belief == "times of this build are doubtful: 1 of 1 row measured now unstable"
    assert listed == []  # the rows are marked where they are listed
    assert others == "1 more unstable row in the table, not asked for by this command"
    assert remedy.startswith("2 of 3 rows unstable (marked ?): ")
    assert "`warmup show TABLE --review`" in remedy
    assert "--retry unstable" in remedy


def test_unstable_rows_are_marked_beside_their_times() -> None:
    """In the grid of rows, and the last line says what the mark means."""
    table = report({16: NOISY, 32: {}}).table
    lines = list(spell_table(table))
    marked = [line for line in lines if " ?10.5 " in line]
    assert len(marked) == 1
    assert lines[-1] == "2 of 2 rows, 1 near_tie, 1 unstable (marked ?), timed at 1980 MHz"


def test_a_build_is_undecided_where_every_measured_row_is_unstable() -> None:
    """Nothing measured is no doubt, and one stable row is a decision."""
    rows = report({16: NOISY, 32: NOISY, 64: {}}).table.rows
    noisy, other, stable = rows
    assert is_undecided(rows, [noisy, other])
    for measured in ([], [noisy, stable], [stable]):
        assert not is_undecided(rows, measured), measured


def test_a_build_of_problems_names_an_option_that_it_takes() -> None:
    """Of problems all rows are measured again, not the unstable ones."""
    *_, last = spell_belief(report({16: NOISY}, (16,)), MEASURE_ALL)
    assert "--retry all" in last


def test_what_was_not_checked_is_no_doubt() -> None:
    """Without NVML nothing is known about a GPU, and the line says so."""
    note = "not checked: clocks (no nvidia-ml-py)"
    unknown = MachineState(measured=1, notes=(note,))
    assert [*spell_belief(report({16: {}}, (16,), machine=unknown))] == [
        f"times of this build can be believed: {note}"
    ]


def test_where_nothing_was_measured_nothing_is_said_of_times() -> None:
    """A second build that finds every row says nothing about its own times."""
    assert [*spell_belief(report({16: {}}, machine=MachineState()))] == []


def test_a_retry_says_what_came_of_it() -> None:
    """How many rows are stable now, were kept, or belong to other buckets; with the reason."""
    kept = {make_key(32): "the new times are unstable too"}
    retried = frozenset(map(make_key, (16, 32, 64)))
    rows = {16: {}, 32: NOISY, 64: NOISY}
    lines = [*spell_belief(report(rows, (16, 32), retried=retried, kept=kept))]
    assert (
        "3 unstable rows before: 1 stable now, 1 kept as it was, "
        "1 not asked for by these buckets" in lines
    )
    assert f"kept: {make_key(32)}: the new times are unstable too" in lines


def test_a_retry_without_unstable_rows_says_so() -> None:
    lines = [*spell_belief(report({16: {}}, machine=MachineState(), retried=frozenset()))]
    assert lines == ["no row of the table is unstable: nothing was measured again"]


ALONG: Mapping[str, Any] = {
    "along": ((257, 1.02), (560, 1.118)),
    "time_us": 34.1,
    "library_us": 30.5,
}


def test_a_winner_slower_than_the_library_is_explained() -> None:
    """For a range the winner may lose at the largest size; the build says why, `show` counts it."""
    found = report({16: ALONG, 32: {"library_us": 5.0}}, (16, 32))
    explained = [line for line in spell(found) if "the library's time" in line]
    (line,) = explained
    assert line == (
        f"{found.timings[0].row.winner.short} takes 1.12x the library's time at size 560, and was "
        "chosen since the library loses more, or fails, at another size of the range: "
        f"{make_key(16)}"
    )
    assert [*spell_table(found.table)][-1].startswith("1 row slower than the library's kernel")
