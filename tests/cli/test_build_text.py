"""What a build prints: its progress, its rows, and whether its times can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table

from warmup.cli.build_render import (
    MEASURE_ALL,
    BuildProgress,
    document,
    is_undecided,
    spell,
    spell_belief,
)
from warmup.cli.tables import spell_table
from warmup.core.buckets import Bucket, parse_buckets
from warmup.core.device import CallCost, MachineState
from warmup.core.rows import Flag, Row
from warmup.core.trial import Tuned
from warmup.tuning.report import BucketResult, BuildReport, CheckedOutput

pytest.importorskip("torch")


QUIET = MachineState(measured=4, cpus=2.0, worst_share=0.03)
NOISY: Mapping[str, Any] = {"flags": (Flag.UNSTABLE,)}
RANGE = Bucket((("batch", 1), ("seqlen", 560)), (("seqlen", 257),))
FIELDS: dict[str, Any] = {"judgement": CheckedOutput(error=0, limit=1), "seconds": 0.5}


def of_rows(rows: Mapping[str, Row], bucket: Bucket | None = None, **fields: Any) -> BuildReport:
    asked: dict[str, Any] = {"keys": tuple(rows), "judgement": CheckedOutput(error=0.0, limit=1.0)}
    result = bucket and BucketResult(bucket=bucket, tuned=0, seconds=1.0, **asked)
    results = () if result is None else (result,)
    given: dict[str, Any] = {"buckets": results, "timings": (), "seconds": 1.0, **fields}
    return BuildReport(path=Path("t.json"), table=make_table(rows), digest="0" * 64, **given)


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
    return of_rows(made, timings=timings, **{"machine": QUIET, **fields})


def test_times_can_be_believed_or_are_doubtful() -> None:
    load = "other processes took up to {}% of 2 CPUs"
    note = "not checked: clocks (no nvidia-ml-py)"
    clock = "its clock is throttled: hardware slowdown"
    for machine, said in (
        (QUIET, f"can be believed: {load.format(3)}"),
        (
            replace(QUIET, disturbed=3, worst_share=0.98),
            f"are doubtful: {load.format(98)}, too much in 3 of 4 measurements",
        ),
        (replace(QUIET, complaints=(clock,)), f"are doubtful: {clock}"),
        (MachineState(measured=1, notes=(note,)), f"can be believed: {note}"),
    ):
        lines = [*spell_belief(report({16: {}}, (16,), machine=machine))]
        assert lines == [f"times of this build {said}"], machine
    assert [*spell_belief(report({16: {}}, machine=MachineState()))] == []


def test_unstable_rows_are_counted_and_can_be_measured_again() -> None:
    rows = {16: NOISY, 32: NOISY, 64: {}, 128: NOISY}
    found = report(rows, (16,), known=(make_key(32), make_key(64)))
    belief, others, remedy = spell_belief(found)
    assert belief == "times of this build are doubtful: 1 of 1 row measured now unstable"
    assert others == "1 more unstable row in the table, not asked for by this command"
    assert remedy.startswith("2 of 3 rows unstable (marked ?): ")
    assert "--retry unstable" in remedy
    # Of problems all rows are measured again.
    assert "--retry all" in [*spell_belief(report({16: NOISY}, (16,)), MEASURE_ALL)][-1]
    assert sum(" ?10.5 " in line for line in spell_table(found.table)) == 3
    noisy, other, stable = map(make_key, (16, 32, 64))
    assert is_undecided(found.table.rows, [noisy, other])
    for measured in ([], [noisy, stable]):
        assert not is_undecided(found.table.rows, measured), measured


def test_a_retry_says_what_came_of_it() -> None:
    kept = {make_key(32): "the new times are unstable too"}
    retried = frozenset(map(make_key, (16, 32, 64)))
    rows = {16: {}, 32: NOISY, 64: NOISY}
    lines = [*spell_belief(report(rows, (16, 32), retried=retried, kept=kept))]
    assert (
        "3 unstable rows before: 1 stable now, 1 kept as it was, "
        "1 not asked for by these buckets" in lines
    )
    assert f"kept: {make_key(32)}: the new times are unstable too" in lines
    lines = [*spell_belief(report({16: {}}, machine=MachineState(), retried=frozenset()))]
    assert lines == ["no row of the table is unstable: nothing was measured again"]


def test_a_table_without_a_gain_says_so() -> None:
    for library_us, is_without in ((12.0, False), (10.0, True), (None, True)):
        row = make_row(time_us=10.0)
        row = replace(row, evidence=replace(row.evidence, library_us=library_us))
        said = [*spell(of_rows({make_key(16): row}, Bucket((("seqlen", 16),))))]
        assert any("gains its start alone" in line for line in said) is is_without, library_us


def test_a_winner_slower_than_the_library_is_explained() -> None:
    """For a range the winner may lose at the largest size; the build says why, `show` counts it."""
    along = {"along": ((257, 1.02), (560, 1.118)), "time_us": 34.1, "library_us": 30.5}
    found = report({16: along, 32: {"library_us": 5.0}}, (16, 32))
    (said,) = (line for line in spell(found) if "the library's time" in line)
    assert "takes 1.12x the library's time at size 560, and was chosen since" in said
    assert said.endswith(f"at another size of the range: {make_key(16)}")
    assert [*spell_table(found.table)][-1].startswith("1 row slower than the library's kernel")


def test_rows_far_from_the_bound_name_the_bucket_to_add() -> None:
    """How many rows, the worst of them and where, and the middle of the bucket.

    A tenth is not above the bound, and what was not timed is not held against a row.
    """
    slow, slower = ((257, 1.24), (408, 1.02), (560, 1.0)), ((257, 1.04), (408, 1.31), (560, 1.0))
    fast = ((257, 1.1), (408, None), (560, 1.03))

    def sloping(*alongs: tuple[tuple[int, float | None], ...]) -> BuildReport:
        row = make_row()
        rows = {
            make_key("257..560", n=n): replace(row, evidence=replace(row.evidence, along=along))
            for n, along in enumerate(alongs, 1)
        }
        return of_rows(rows, RANGE)

    said = "rows are up to 1.31x as slow as the best at size 408: add the bucket batch=1,seqlen=408"
    assert f"{RANGE}: 2 {said}" in list(spell(sloping(slow, slower, fast)))
    assert "add the bucket" not in "".join(spell(sloping(fast)))
    (split,) = document(sloping(fast, slow))["splits"]
    assert split["bucket"] == str(RANGE)
    assert (split["keys"], split["size"]) == ([make_key("257..560", n=2)], 257)
    assert (split["ratio"], split["add"]) == (1.24, {"batch": 1, "seqlen": 408})


def test_a_log_says_that_a_silent_build_goes_on_and_for_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with BuildProgress() as progress:
        progress.packing_started()
        progress.time_left(3725.9, 0.5)
        monkeypatch.setattr("warmup.cli.build_render._SILENT_S", 0.0)
        progress.packing_started()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("packing the bundle: 0:0")
    assert line.endswith(" so far, about 1:02:05 left")


def test_a_finished_bucket_says_what_limits_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said of it on a CPU, where it is not measured."""
    (bucket,) = parse_buckets("16", None)
    for cost, said in (
        (CallCost(120.0, 38.0), "; host 120.0 us, device 38.00 us: the host limits it"),
        (None, "0.5 s"),
    ):
        with BuildProgress() as progress:
            progress.bucket_finished(
                BucketResult(bucket=bucket, keys=("k",), tuned=1, cost=cost, **FIELDS)
            )
        assert capsys.readouterr().err.rstrip().endswith(said), (cost, said)
