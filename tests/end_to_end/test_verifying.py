"""`check --verify`: rows timed again from their keys, against their recorded contenders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import make_outcome
from typer.testing import CliRunner

from warmup.cli.app import app
from warmup.core.rows import Family, Method, Row, Winner
from warmup.core.trial import Tuned
from warmup.keys.question import GemmQuestion
from warmup.measuring.selection import make_row
from warmup.table.schema import Table
from warmup.table.store import read, write
from warmup.tuning.tuner import Tuner
from warmup.tuning.verify import Verification, VerifiedRow, choice_named, read_drifted, verify

Built = tuple[Path, dict[str, object]]


def planted(table: Table, key: str, winner: Winner) -> Table:
    """*table* with a wrong *winner* for *key*, as if the other had been slower, without noise."""
    row = table.rows[key]
    evidence = replace(row.evidence, runner_up=str(row.winner), flags=(), rejected=(), band=None)
    return replace(table, rows={**table.rows, key: Row(winner, evidence)})


def test_the_planted_row_is_named_and_an_unchanged_table_kept(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each GEMM is asked for by its key alone; the times are given: twice as long for others."""
    table, contenders = read(built[0]), dict[str, list[Winner]]()
    rows = {key: row for key, row in table.rows.items() if row.evidence.runner_up}
    table = replace(table, rows=rows)  # a build on a busy machine may know no time of another

    def measure(_: Tuner, question: GemmQuestion) -> Tuned | None:
        key, listed = question.problem.key, [one.winner for one in question.candidates]
        contenders[key] = [one for one in listed if one != table.rows[key].winner]
        times = {one: 20.0 if one in contenders[key] else 10.0 for one in listed}
        outcomes = [make_outcome(winner, time_us) for winner, time_us in times.items()]
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
    write(tmp_path / "wrong.json", wrong)
    ran = CliRunner().invoke(app, f"check --device cpu {tmp_path}/wrong.json --verify 100% --json")
    (tmp_path / "said.json").write_text(ran.stdout)
    assert (ran.exit_code, read_drifted(tmp_path / "said.json")) == (11, (key,)), ran.stderr
    assert "--retry FILE" in ran.stderr
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
def test_planted_rows_are_timed_or_say_why(built: Built) -> None:
    """In real times, which decide nothing here: a busy machine hides a winner that is slower."""
    table = read(built[0])
    for key, row in table.rows.items():
        table = planted(table, key, choice_named(row.evidence.runner_up or str(row.winner)))
    done = verify(table, "100%", device="cpu", limit_s=300)
    keys = {row.key for row in done.timed}.union(*done.skipped.values())
    assert (keys, done.left) == (table.rows.keys(), 0)
    assert all(row.winner == str(table.rows[row.key].winner) for row in done.timed)
    assert all(reason.startswith("their ") for reason in done.skipped), done.skipped
