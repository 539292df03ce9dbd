"""`check --verify`: rows timed again from their keys, against their recorded contenders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from own_processes import Built
from sample_tables import make_outcome
from typer.testing import CliRunner

from warmup.cli.app import app
from warmup.core.rows import Family, Method, Rejection, Row, Winner
from warmup.core.trial import Candidate, Operands, Tuned
from warmup.keys.question import GemmQuestion
from warmup.measuring.selection import make_row
from warmup.table.schema import Table
from warmup.table.store import read, write
from warmup.tuning.tuner import Tuner
from warmup.tuning.verify import Verification, VerifiedRow, choice_named, read_drifted, verify


def planted(table: Table, key: str, winner: Winner) -> Table:
    """*table* with a wrong *winner* for *key*, as if the other had been slower, without noise."""
    row = table.rows[key]
    evidence = replace(row.evidence, runner_up=str(row.winner), flags=(), rejected=(), band=None)
    return replace(table, rows={**table.rows, key: Row(winner, evidence)})


def test_the_planted_row_is_named_and_an_unchanged_table_kept(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GEMM is asked for by its key alone; the times are given: twice as long for others."""
    table, contenders, noise = read(built[0]), dict[str, list[Winner]](), dict[Winner, Rejection]()
    rows = {key: row for key, row in table.rows.items() if row.evidence.runner_up}
    table = replace(table, rows=rows)  # a build on a busy machine may know no time of another

    def measure(_: Tuner, question: GemmQuestion) -> Tuned | None:
        key, listed = question.problem.key, [one.winner for one in question.candidates]
        contenders[key] = [one for one in listed if one != table.rows[key].winner]
        times = {one: 20.0 if one in contenders[key] else 10.0 for one in listed}
        outcomes = [make_outcome(*each, rejection=noise.get(each[0])) for each in times.items()]
        return make_row(key, outcomes, listed[0], Method())

    monkeypatch.setattr(Tuner, "measure", measure)
    done = verify(table, "100%", device="cpu")
    assert ([*done.drifted], done.verdict, done.left) == ([], "keep", 0)
    assert {row.key for row in done.timed} == contenders.keys() == table.rows.keys()
    key = max(table.rows, key=lambda key: table.rows[key].evidence.time_us)
    wrong = planted(table, key, contenders[key][0])
    done = verify(wrong, "1", device="cpu")
    (row,) = done.drifted
    assert (row.key, row.time_us, row.rival_us) == (key, 20.0, 10.0)
    assert (row.rival, done.verdict, done.lost) == (str(table.rows[key].winner), "rebuild", 0.5)
    noise[table.rows[key].winner] = Rejection.IMPLAUSIBLE
    done = verify(wrong, "1", device="cpu")
    assert (done.timed, done.verdict, [*done.skipped.values()]) == ([], "unknown", [[key]])
    noise.clear()
    failing = replace(row, time_us=None, rival=None)
    assert (failing.has_drifted, replace(done, timed=[failing]).verdict) == (True, "rebuild")
    evidence = replace(wrong.rows[key].evidence, runner_up_us=wrong.rows[key].evidence.time_us / 2)
    known = Row(contenders[key][0], evidence)  # as far behind at the build
    assert not verify(replace(table, rows={key: known}), "1", device="cpu").drifted
    alone = Row(Winner(Family.EXTERN, "aten::mm", ()), replace(evidence, runner_up=None))
    done = verify(replace(table, rows={key: alone}), "1", device="cpu")
    assert (done.timed, done.left, [*done.skipped.values()]) == ([], 0, [[key]])
    done = verify(table, "100%", device="cpu", limit_s=0.0)
    assert (done.timed, done.left, done.verdict) == ([], len(table.rows), "unknown")


def test_another_clock_is_no_drift() -> None:
    for ratios, is_other in (
        ((1.30, 1.31, 1.29), True),
        ((0.90, 0.91, 0.90), True),
        ((1.30, 1.00, 1.70), False),
        ((1.01, 1.02, 1.01), False),
        ((1.30, 1.30), False),
    ):
        rows = [
            VerifiedRow(key=str(ratio), winner="a", time_us=10 * ratio, recorded_us=10.0)
            for ratio in ratios
        ]
        done = Verification(rows=9, timed=rows, skipped={}, left=0, seconds=1.0)
        assert (done.is_other_clock, done.verdict) == (is_other, "keep"), ratios


@pytest.mark.nightly
def test_check_names_the_rows_to_measure_again(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In real times: a wrong winner computes ten times in a call, which no load hides."""
    table, keys, measure = read(built[0]), set[str](), Tuner.measure
    for key, row in table.rows.items():
        if row.evidence.runner_up is not None:
            table = planted(table, key, choice_named(row.evidence.runner_up))
            keys.add(key)

    def measure_slowed(tuner: Tuner, question: GemmQuestion) -> Tuned | None:
        live, slow = question.live, table.rows[question.problem.key].winner.choice
        assert live is not None

        def make_call(candidate: Candidate, operands: Operands) -> Callable[[int], object]:
            call = live.make_call(candidate, operands)
            return call if candidate.winner != slow else lambda i: [call(i) for _ in range(10)][-1]

        return measure(tuner, replace(question, live=replace(live, make_call=make_call)))

    monkeypatch.setattr(Tuner, "measure", measure_slowed)
    write(tmp_path / "wrong.json", table)
    says = f"check --device cpu {tmp_path}/wrong.json --verify 100% --timeout 300 --json"
    done = CliRunner().invoke(app, says)
    (tmp_path / "said.json").write_text(done.stdout)
    verified = json.loads(done.stdout)["verified"]
    noisy = {key for each in verified["skipped"].values() for key in each}
    assert {row["key"] for row in verified["timed"]} | noisy == table.rows.keys()
    assert keys - noisy <= {*read_drifted(tmp_path / "said.json")}
    assert (done.exit_code, "--retry FILE" in done.stderr) == (11, True), verified["skipped"]
