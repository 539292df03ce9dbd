"""What a build says before it tunes, and how much is left."""

from __future__ import annotations

from typing import Any, cast

import pytest
from rich.console import Console
from rich.progress import Progress

from warmup.cli.build_render import BuildProgress, DoneColumn, StepColumn
from warmup.core.buckets import parse_buckets
from warmup.core.device import CallCost
from warmup.core.trial import Tuned
from warmup.tuning.report import BucketResult, CheckedOutput

FIELDS: dict[str, Any] = {"judgement": CheckedOutput(error=0, limit=1), "seconds": 0.5}


def test_a_log_says_that_a_silent_build_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with BuildProgress() as progress:
        progress.candidates_compiled(1, 3)
        monkeypatch.setattr("warmup.cli.build_render._SILENT_S", 0.0)
        progress.candidates_compiled(2, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("starting: 2 of 3 candidates compiled: 0:00:0")


def test_the_time_left_is_that_of_the_units() -> None:
    now = [0.0]
    progress = Progress(
        console=Console(quiet=True), get_time=lambda: now[0], speed_estimate_period=1e6
    )
    number = progress.add_task("x", total=None)
    for seconds, total, done, said in (
        (60, None, 0, "0:01:00 so far"),
        (60, 6, 0, "0 of 6 rounds, 0:01:00 so far"),
        (62, 6, 1, "1 of 6 rounds, 0:01:02 so far"),
        (64, 6, 2, "2 of 6 rounds, 0:01:04 so far, about 0:00:08 left"),
        (72, 6, 6, "6 of 6 rounds, 0:01:12 so far"),
    ):
        now[0] = seconds
        progress.update(number, total=total, completed=done)
        assert DoneColumn("rounds").render(progress.tasks[0]).plain == said


def test_a_tuned_problem_is_a_part_of_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many as the model has different weights, then as the buckets before had.

    Buckets with padded weights are no more buckets, but counted from 0 again.
    """
    seen: list[float] = []
    monkeypatch.setattr(
        BuildProgress, "show", lambda _self, _step=None, done=None, **_: seen.append(done)
    )
    progress, tuned = BuildProgress(), cast("Tuned", None)  # is not looked at
    progress.problems_expected(4)
    buckets = parse_buckets("16,32", None)
    progress.bucket_started(buckets[0], 0, 2, weights_padded=False)
    progress.problem_finished(tuned)
    progress.problem_finished(tuned)
    progress.bucket_finished(BucketResult(bucket=buckets[0], tuned=2, keys=("k", "l"), **FIELDS))
    progress.bucket_started(buckets[1], 1, 2, weights_padded=False)
    for _ in range(3):
        progress.problem_finished(tuned)
    assert seen == [0, 0.25, 0.5, 1, 1, 1.5, 1.95, 1.95]
    progress.bucket_started(buckets[0], 0, 2, weights_padded=True)
    assert seen[-1] == 0


def test_a_long_step_leaves_room_for_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=80, force_terminal=True, color_system=None)
    progress = Progress(StepColumn(), DoneColumn("buckets"), console=console)
    progress.add_task("batch=4,seqlen=128: 10 problems tuned " * 3, total=4)
    console.print(progress.get_renderable())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.rstrip().endswith("0 of 4 buckets, 0:00:00 so far")


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
