"""Builds on several devices whose workers die, hang or have no memory; each is a real process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.rows import Tuned
from warmup.table.codec import encode
from warmup.table.schema import Table
from warmup.table.store import read, write
from warmup.tuning.device_host import (
    FinishedProblem,
    LocalRunner,
    ProblemTask,
    ReadyWorker,
    RunnerGoneError,
    RunnerLostError,
    WorkerOrder,
    worker_name,
)
from warmup.tuning.devices import Devices, SharedBuild, tune_with
from warmup.tuning.problems import ProblemsSource, as_problems
from warmup.tuning.report import BuildReport, Observer
from warmup.tuning.request import BuildRequest

FAKE = Path(__file__).resolve().parents[1] / "programs" / "fake_device_worker.py"
SIZES = (16, 32, 64, 128)
Make = Callable[..., LocalRunner]
Tune = Callable[..., BuildReport]


@pytest.fixture
def keys() -> list[str]:
    return [make_key(size) for size in SIZES]


@pytest.fixture
def make_runner(keys: list[str], tmp_path: Path) -> Make:
    """``make_runner("cuda:0", {key: "kill"}, control_us=105)``: a worker that fails as told."""

    def make(
        device: str,
        faults: Mapping[str, str] | None = None,
        *,
        table: Table | None = None,
        control_us: float | None = 100.0,
        problem_s: float = 60.0,
        lane: int = 0,
        **case: str,
    ) -> LocalRunner:
        rows = table or make_table({key: make_row(BLOCK_M=16) for key in keys})
        told = {"table": encode(rows), "control_us": control_us, "faults": faults or {}, **case}
        return LocalRunner(
            name=worker_name(device, lane),
            device=device,
            order=WorkerOrder(folder=str(tmp_path), turn="turn", parent=1),
            start_s=60.0,
            silence_s=1.0,
            problem_s=problem_s,
            command=(sys.executable, "-P", str(FAKE), json.dumps(told)),
        )

    return make


def shared_build(keys: Sequence[str], out: Path, observer: Observer | None = None) -> SharedBuild:
    source = ProblemsSource(as_problems(keys))
    request = BuildRequest(source=source, runner=Devices(names="cpu"), out=out)
    return SharedBuild.of(request, observer or Observer())


@pytest.fixture
def tune(keys: list[str], tmp_path: Path) -> Tune:
    """``tune(runner, ...)``: a build of all problems into t.json."""

    def build(*runners: LocalRunner, observer: Observer | None = None) -> BuildReport:
        return tune_with(runners, shared_build(keys, tmp_path / "t.json", observer))

    return build


def test_what_was_measured_on_the_way_is_tuned(keys: list[str], tmp_path: Path) -> None:
    """A problem that a worker gave up, and that another problem then measured, has its row."""
    first, second = keys[:2]
    both = tuple(Tuned(key, make_row(), ()) for key in (first, second))
    finished = [FinishedProblem(not_tuned={first: "out of memory"}), FinishedProblem(tuned=both)]
    table = make_table({})
    ready = ReadyWorker(runtime=table.provenance.runtime, policy=table.policy)
    runner: Any = StatedRunner(ready, finished)
    report = tune_with([runner], shared_build((first, second), tmp_path / "t.json"))
    assert (sorted(report.table.rows), dict(report.not_tuned)) == (sorted(keys[:2]), {})


@dataclass
class StatedRunner:
    """A worker whose answers are stated."""

    ready: ReadyWorker
    answers: list[FinishedProblem]
    name: str = "cpu"
    device: str = "cpu"

    def start(self) -> ReadyWorker:
        """Be ready at once."""
        return self.ready

    def run(self, task: ProblemTask) -> FinishedProblem:
        """Give the next answer."""
        return self.answers.pop(0)

    def stop(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


class Losses(Observer):
    """Keeps which problems were lost on which device, why, and whether another takes them over."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, bool]] = []

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        """Keep the loss."""
        self.seen.append((key, device, reason, goes_on))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("kill", "was killed by SIGKILL (about to die)"),
        ("exit", "ended with exit code 7"),
        ("hang", "said nothing for 1 s"),
        ("memory", "ran out of memory: CUDA out of memory"),
    ],
)
def test_a_lost_worker_costs_one_problem_which_another_takes_over(
    make_runner: Make, tune: Tune, keys: list[str], fault: str, said: str
) -> None:
    """Every problem has its row, the loss is reported, and the report has no failure."""
    losses = Losses()
    bad = dict.fromkeys(keys, fault)
    report = tune(make_runner("cuda:0", bad), make_runner("cuda:1"), observer=losses)
    assert report.table.rows.keys() == set(keys)
    assert (report.not_tuned, report.not_rebuilt) == ({}, {})
    assert {device for _, device, _, _ in losses.seen} == {"cuda:0"}
    assert all(said in reason and goes_on for _, _, reason, goes_on in losses.seen)


def test_a_problem_that_takes_too_long_is_taken_over(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """A worker that gives signs of life and never finishes is ended at the limit."""
    losses, bad = Losses(), dict.fromkeys(keys, "slow")
    runners = make_runner("cuda:0", bad, problem_s=0.5), make_runner("cuda:1")
    assert tune(*runners, observer=losses).table.rows.keys() == set(keys)
    assert "took longer than 0.5 s" in losses.seen[0][2]


def test_a_problem_that_ends_two_workers_is_reported_as_failed(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """It has no row and both reasons; the others are tuned by workers that started again."""
    bad = {keys[1]: "kill"}
    report = tune(make_runner("cuda:0", bad), make_runner("cuda:1", bad))
    assert report.not_tuned.keys() == {keys[1]}
    reason = report.not_tuned[keys[1]]
    assert "the worker on cuda:0 was killed" in reason
    assert "the worker on cuda:1 was killed" in reason
    assert report.table.rows.keys() == set(keys) - {keys[1]}


def test_the_report_counts_what_each_device_finished(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    report = tune(make_runner("cuda:0", dict.fromkeys(keys, "kill")), make_runner("cuda:1"))
    first, second = report.devices
    assert (first.problems, second.problems) == (0, len(keys))


def test_when_no_device_is_left_the_rest_fails(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """A worker is given up after three losses in a row; what was tuned before is kept."""
    bad = dict.fromkeys(keys[1:], "kill")
    report = tune(make_runner("cuda:0", bad))
    assert report.table.rows.keys() == {keys[0]}
    assert report.not_tuned.keys() == set(keys[1:])
    assert "no device is left" in report.not_tuned[keys[-1]]
    assert "3 problems in a row" in report.devices[0].left_out


def test_each_row_is_on_disk_when_its_problem_is_finished(
    make_runner: Make, tune: Tune, tmp_path: Path
) -> None:
    """A build that ends now loses only what is being measured."""
    on_disk: list[bool] = []

    class Reading(Observer):
        def problem_finished(self, tuned: Tuned) -> None:
            """Look for the row in the file."""
            on_disk.append(tuned.key in read(tmp_path / "t.json").rows)

    tune(make_runner("cuda:0"), make_runner("cuda:1"), observer=Reading())
    assert on_disk == [True] * len(SIZES)


def test_what_the_table_has_is_not_given_to_a_device(
    make_runner: Make, tune: Tune, keys: list[str], tmp_path: Path
) -> None:
    """Only problems without a row are tuned; the rows that were there stay as they are."""
    before = next(iter(make_table().rows.values()))
    write(tmp_path / "t.json", make_table({keys[0]: before}))
    report = tune(make_runner("cuda:0"))
    assert (report.known, len(report.timings)) == ((keys[0],), len(keys) - 1)
    assert report.table.rows[keys[0]] == before


def test_a_device_that_is_off_is_named_and_left_out(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """A GPU whose time of the control problem is outside of the band tunes nothing."""
    report = tune(make_runner("cuda:0"), make_runner("cuda:1", control_us=105.0))
    first, second = report.devices
    assert (first.problems, second.problems) == (len(keys), 0)
    assert "+5.0% against cuda:0" in second.left_out


def test_a_device_that_does_not_start_is_left_out(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """The others tune everything, and the report has what the worker said."""
    report = tune(make_runner("cuda:0", gone="no CUDA driver"), make_runner("cuda:1"))
    assert [share.left_out for share in report.devices] == ["no CUDA driver", ""]
    assert report.table.rows.keys() == set(keys)


def test_the_first_worker_times_the_control_problem_for_its_device(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    report = tune(make_runner("cuda:0"), make_runner("cuda:0", control_us=None, lane=1))
    (device,) = report.devices
    assert (device.control_us, device.problems) == (100.0, len(keys))


def test_a_device_whose_control_problem_was_not_timed_is_left_out(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """Nobody knows whether its rows would be comparable, though its second worker started."""
    report = tune(
        make_runner("cuda:0", gone="no CUDA driver"),
        make_runner("cuda:1"),
        make_runner("cuda:0", control_us=None, lane=1),
    )
    first, second = report.devices
    assert first.left_out == "the control problem was not timed: no CUDA driver"
    assert (first.problems, second.problems) == (0, len(keys))


def test_without_a_time_of_any_device_the_build_is_an_error(make_runner: Make, tune: Tune) -> None:
    """The error has the reason."""
    with pytest.raises(BuildError, match="no device can be used: cuda:0: the control problem was"):
        tune(
            make_runner("cuda:0", gone="no CUDA driver"),
            make_runner("cuda:0", control_us=None, lane=1),
        )


def test_without_any_device_the_build_is_an_error(make_runner: Make, tune: Tune) -> None:
    """The error has the reason of each device."""
    with pytest.raises(BuildError, match="no device started: cuda:0: no CUDA driver"):
        tune(make_runner("cuda:0", gone="no CUDA driver"))


def test_devices_of_two_kinds_are_refused(make_runner: Make, tune: Tune, tmp_path: Path) -> None:
    other = make_table({}, runtime=make_runtime(name="NVIDIA H100"))
    with pytest.raises(SettingsError, match="mixes kinds"):
        tune(make_runner("cuda:0"), make_runner("cuda:1", table=other))
    assert not (tmp_path / "t.json").exists()


def test_without_a_row_there_is_no_table(make_runner: Make, tune: Tune, keys: list[str]) -> None:
    """Where every problem failed and no table was there, the reasons are the error."""
    with pytest.raises(NothingRecordedError, match="was killed by SIGKILL"):
        tune(make_runner("cuda:0", dict.fromkeys(keys, "kill")))


def test_a_worker_that_is_stopped_ends_at_once(make_runner: Make, keys: list[str]) -> None:
    runner = make_runner("cuda:0", {keys[0]: "slow"})
    runner.start()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(runner.run, ProblemTask(key=keys[0]))
        started = time.monotonic()
        runner.stop()
        with pytest.raises(RunnerLostError, match="SIGKILL"):
            call.result()
    assert time.monotonic() - started < 30
    with pytest.raises(RunnerGoneError):
        runner.start()
    runner.close()


def test_a_worker_that_sends_a_damaged_message_is_lost(
    make_runner: Make, tune: Tune, keys: list[str]
) -> None:
    """The other worker takes its problem over, and the loss says what was wrong."""
    losses = Losses()
    bad = dict.fromkeys(keys, "damage")
    report = tune(make_runner("cuda:0", bad), make_runner("cuda:1"), observer=losses)
    assert report.table.rows.keys() == set(keys)
    assert "sent a damaged message: " in losses.seen[0][2]
