"""A build on several devices: names, the queue, messages; workers that die, hang, lack memory."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.trial import Tuned
from warmup.serving.audit import MissedProblem
from warmup.table.codec import encode
from warmup.table.schema import Table
from warmup.table.store import read, write
from warmup.tuning import device_worker as worker
from warmup.tuning.build import BuildOptions, BuildRequest
from warmup.tuning.devices import (
    GPU_LANES,
    Devices,
    LocalRunner,
    ProblemTask,
    RunnerLostError,
    SharedBuild,
    WorkerOrder,
    devices_off,
    parse_devices,
    to_message,
    tune_with,
)
from warmup.tuning.problems import ProblemsSource, as_problems, share_of
from warmup.tuning.report import BuildReport, Observer

FAKE = Path(__file__).resolve().parents[1] / "programs" / "fake_device_worker.py"
KEYS = [make_key(size) for size in (16, 32, 64, 128)]
SMALL = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
BOTH = {"cuda:0", "cuda:1"}
Tune = Callable[..., BuildReport]


def test_names_are_those_of_visible_gpus_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slots = parse_devices("all")
    assert [slot.name for slot in slots] == [f"cuda:{index}" for index in range(4)]
    assert {slot.lanes for slot in slots} == {GPU_LANES}
    (_, slot) = parse_devices("cuda:0, cuda:3")
    assert (slot.inside, slot.environment) == ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3"})
    (slot,) = parse_devices("cpu,cpu,cpu")
    assert (slot.name, slot.lanes, slot.environment) == ("cpu", 3, {})
    for text, said in (
        ("cuda:0,cuda:0", "has cuda:0 twice"),
        ("cuda:0,cuda:4", "4 GPUs here, and cuda:4 is not one"),
        ("cuda", "'cuda' is not a device"),
        ("", "'' is not a device"),
        ("all,cuda:0", "'all' is not a device"),
    ):
        with pytest.raises(SettingsError, match=said):
            parse_devices(text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab12,7,6")
    assert parse_devices("cuda:1")[0].environment == {"CUDA_VISIBLE_DEVICES": "GPU-ab12"}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingsError, match="there is no GPU here"):
        parse_devices("all")


def test_a_device_outside_of_the_band_is_named() -> None:
    """Whichever way it differs from the device in the middle; of two the faster goes on."""
    off = devices_off({"cuda:0": 100.0, "cuda:1": 105.0, "cuda:2": 101.0}, 0.03)
    assert "105.0 us, +4.0% against cuda:2 (101.0 us); at most 3%" in off["cuda:1"]
    for times, left_out in (
        ({"cuda:0": 100.0, "cuda:1": 105.0, "cuda:2": 101.0}, {"cuda:1"}),
        ({"cuda:0": 80.0, "cuda:1": 100.0, "cuda:2": 101.0}, {"cuda:0"}),
        ({"cuda:0": 105.0, "cuda:1": 100.0}, {"cuda:0"}),
        ({"cuda:0": 100.0, "cuda:1": 102.9}, set()),
        ({}, set()),
    ):
        assert devices_off(times, 0.03).keys() == left_out, times


def test_the_shares_are_disjoint_complete_balanced_and_stable() -> None:
    """For any N; two problems of a key stay together, and the document's order says nothing."""
    problems = [
        MissedProblem(make_key(size), "gemm", reason, 1)
        for size in range(16, 16 * 102, 16)
        for reason in ("not_in_table", "untrusted")
    ]
    for count in (1, 2, 7, 101):
        shares = [share_of(problems, f"{number}/{count}") for number in range(1, count + 1)]
        together = [each for share in shares for each in share]
        assert (len(together), set(together)) == (len(problems), set(problems)), count
        keys = [{each.key for each in share} for share in shares]
        assert sum(map(len, keys)) == 101, count
        assert max(map(len, keys)) - min(map(len, keys)) <= 1, count
        for number, share in enumerate(shares, 1):
            assert set(share_of(problems[::-1], f"{number}/{count}")) == set(share), count
    # This key stood in this share when the hash was chosen; machines agree by it.
    assert {each.key for each in share_of(as_problems(KEYS[:3]), "1/3")} == {KEYS[1]}
    with pytest.raises(NothingRecordedError, match="2/2 is empty: the document has 1 problem"):
        share_of(problems[:1], "2/2")
    for wrong in ("0/2", "3/2", "1", "1/0", "/", "a/b", "-1/2", "1/2/3", " 1/2", "1/1000000"):
        with pytest.raises(SettingsError, match="is no share of the problems"):
            share_of(problems, wrong)


def test_a_lack_of_memory_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands among the causes of the error, and the second problem is not begun."""

    def fail(*_: object, **__: object) -> None:
        shortage = torch.OutOfMemoryError("CUDA out of memory.\nmore")
        raise BuildError("bucket m=16: compiling failed") from shortage

    monkeypatch.setattr(worker, "tune_rebuilt", fail)
    monkeypatch.setattr(worker, "time_control", lambda _tuner: 100.0)
    options = BuildOptions(device="cpu", wait_for_quiet=0)
    turn = str(tmp_path / "turn")
    order = WorkerOrder(folder=str(tmp_path), turn=turn, parent=os.getpid(), options=options)
    lines = [to_message(order), *[to_message(ProblemTask(key=SMALL))] * 2]
    answers: list[Mapping[str, Any]] = []
    requests = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
    worker.serve(requests, answers.append)
    assert list(answers[0]) == ["ready"]
    assert answers[1:] == [{"lost": "ran out of memory: CUDA out of memory."}]


def runner_of(
    device: str,
    faults: Mapping[str, str] | None = None,
    *,
    table: Table | None = None,
    control_us: float | None = 100.0,
    problem_s: float = 60.0,
    **case: str,
) -> LocalRunner:
    """Return a worker on *device*, a real process, that fails as *faults* says by key."""
    rows = table or make_table({key: make_row(BLOCK_M=16) for key in KEYS})
    told = {"table": encode(rows), "control_us": control_us, "faults": faults or {}, **case}
    return LocalRunner(
        name=f"{device}{'' if control_us else ' (2)'}",
        device=device,
        order=WorkerOrder(folder="/tmp", turn="turn", parent=1),  # noqa: S108  it writes nothing there
        start_s=60.0,
        silence_s=1.0,
        problem_s=problem_s,
        command=(sys.executable, "-P", str(FAKE), json.dumps(told)),
    )


class Seen(Observer):
    """Keeps losses, and whether each row was on disk when its problem was finished."""

    def __init__(self, table: Path) -> None:
        self.losses: list[tuple[str, str, bool]] = []
        self.on_disk: list[bool] = []
        self._table = table

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        self.losses.append((device, reason, goes_on))

    def problem_finished(self, tuned: Tuned) -> None:
        self.on_disk.append(tuned.key in read(self._table).rows)


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path / "t.json")


@pytest.fixture
def tune(seen: Seen, tmp_path: Path) -> Tune:
    """``tune(runner, ...)``: a build of all problems into t.json."""

    def build(*runners: LocalRunner) -> BuildReport:
        source = ProblemsSource(as_problems(KEYS))
        out = tmp_path / "t.json"
        request = BuildRequest(source=source, runner=Devices(names="cpu"), out=out)
        return tune_with(runners, SharedBuild(request=request, observer=seen))

    return build


def test_a_lost_worker_costs_one_problem_which_another_takes_over(
    tune: Tune, seen: Seen, tmp_path: Path
) -> None:
    for fault, said in (
        ("kill", "was killed by SIGKILL (about to die)"),
        ("hang", "said nothing for 1 s"),
        ("memory", "ran out of memory: CUDA out of memory"),
        ("slow", "took longer than 0.5 s"),
        ("damage", "sent a damaged message: "),
    ):
        (tmp_path / "t.json").unlink(missing_ok=True)
        seen.losses, seen.on_disk = [], []
        faults, problem_s = dict.fromkeys(KEYS, fault), 0.5 if fault == "slow" else 60
        report = tune(runner_of("cuda:0", faults, problem_s=problem_s), runner_of("cuda:1"))
        assert report.table.rows.keys() == set(KEYS), fault
        assert (report.not_tuned, report.not_rebuilt) == ({}, {}), fault
        assert {device for device, _, _ in seen.losses} == {"cuda:0"}, fault
        assert all(said in reason and goes_on for _, reason, goes_on in seen.losses), fault
        assert [share.problems for share in report.devices] == [0, len(KEYS)], fault
        assert seen.on_disk == [True] * len(KEYS), fault


def test_a_problem_that_ends_two_workers_is_reported_as_failed(tune: Tune) -> None:
    """It has no row and both reasons; the others are tuned by workers that started again."""
    bad = {KEYS[1]: "kill"}
    report = tune(runner_of("cuda:0", bad), runner_of("cuda:1", bad))
    assert report.not_tuned.keys() == {KEYS[1]}
    for device in BOTH:
        assert f"the worker on {device} was killed" in report.not_tuned[KEYS[1]]
    assert report.table.rows.keys() == set(KEYS) - {KEYS[1]}


def test_when_no_device_is_left_the_rest_fails(tune: Tune) -> None:
    """A worker is given up after three losses in a row; what was tuned before is kept."""
    report = tune(runner_of("cuda:0", dict.fromkeys(KEYS[1:], "kill")))
    assert report.table.rows.keys() == {KEYS[0]}
    assert report.not_tuned.keys() == set(KEYS[1:])
    assert "no device is left" in report.not_tuned[KEYS[-1]]
    assert "3 problems in a row" in report.devices[0].left_out


def test_what_the_table_has_is_not_given_to_a_device(tune: Tune, tmp_path: Path) -> None:
    before = next(iter(make_table().rows.values()))
    write(tmp_path / "t.json", make_table({KEYS[0]: before}))
    report = tune(runner_of("cuda:0"))
    assert (report.known, len(report.timings)) == ((KEYS[0],), len(KEYS) - 1)
    assert report.table.rows[KEYS[0]] == before


def test_devices_that_are_off_or_gone_are_named_and_left_out(tune: Tune) -> None:
    """Without a time of its control problem a device's second worker tunes nothing either."""
    report = tune(
        runner_of("cuda:0", gone="no CUDA driver"),
        runner_of("cuda:1", control_us=105.0),
        runner_of("cuda:2"),
        runner_of("cuda:3", gone="no memory"),
        runner_of("cuda:3", control_us=None),
        runner_of("cuda:2", control_us=None),
    )
    left_out = {share.name: share.left_out for share in report.devices}
    assert "+5.0% against cuda:2" in left_out.pop("cuda:1")
    assert left_out == {
        "cuda:0": "no CUDA driver",
        "cuda:2": "",
        "cuda:3": "the control problem was not timed: no memory",
    }
    assert [share.problems for share in report.devices] == [0, 0, len(KEYS), 0]


def test_without_a_device_the_build_is_an_error(tune: Tune, tmp_path: Path) -> None:
    gone = runner_of("cuda:0", gone="no CUDA driver")
    with pytest.raises(BuildError, match="no device started: cuda:0: no CUDA driver"):
        tune(gone)
    gone = runner_of("cuda:0", gone="no CUDA driver")
    with pytest.raises(BuildError, match="no device can be used: cuda:0: the control problem was"):
        tune(gone, runner_of("cuda:0", control_us=None))
    other = make_table({}, runtime=make_runtime(name="NVIDIA H100"))
    with pytest.raises(SettingsError, match="mixes kinds"):
        tune(runner_of("cuda:0"), runner_of("cuda:1", table=other))
    assert not (tmp_path / "t.json").exists()
    with pytest.raises(NothingRecordedError, match="was killed by SIGKILL"):
        tune(runner_of("cuda:0", dict.fromkeys(KEYS, "kill")))


def test_a_worker_that_is_stopped_ends_at_once() -> None:
    runner = runner_of("cuda:0", {KEYS[0]: "slow"})
    runner.start()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(runner.run, ProblemTask(key=KEYS[0]))
        started = time.monotonic()
        runner.stop()
        with pytest.raises(RunnerLostError, match="SIGKILL"):
            call.result()
    assert time.monotonic() - started < 30
    with pytest.raises(RunnerLostError):
        runner.start()
    runner.close()
