"""A build on several devices: their names, the queue, what workers are told and answer."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from sample_tables import make_key, make_row, make_runtime, make_table
from torch.torch_version import TorchVersion

from warmup.core.buckets import Bucket
from warmup.core.device import MachineState
from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.method import CandidateSource, Resource, Search, SearchCounts
from warmup.core.phases import BuildStage
from warmup.core.roofline import Peaks
from warmup.core.rows import Family, Rejection, Timing, Tuned, Winner
from warmup.serving.audit import MissedProblem
from warmup.tuning import device_worker as worker
from warmup.tuning.device_host import (
    GPU_LANES,
    DeviceMessage,
    FinishedProblem,
    ProblemTask,
    ReadyWorker,
    WorkerOrder,
    parse_devices,
)
from warmup.tuning.devices import ProblemQueue, check_one_kind, devices_off
from warmup.tuning.problems import share_of
from warmup.tuning.report import BucketResult, CheckedOutput
from warmup.tuning.request import BuildOptions


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host with four GPUs, none of which is hidden."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("gpus")
def test_all_are_the_gpus_of_the_host() -> None:
    slots = parse_devices("all")
    assert [slot.name for slot in slots] == [f"cuda:{index}" for index in range(4)]
    assert {slot.lanes for slot in slots} == {GPU_LANES}


@pytest.mark.usefixtures("gpus")
def test_a_worker_sees_its_gpu_alone() -> None:
    (_, slot) = parse_devices("cuda:0, cuda:3")
    assert (slot.inside, slot.environment) == ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3"})


def test_names_count_the_visible_gpus(gpus: pytest.MonkeyPatch) -> None:
    """Where the build sees some GPUs only, names are those that it sees, as everywhere in torch."""
    gpus.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab12,7,6")
    assert parse_devices("cuda:1")[0].environment == {"CUDA_VISIBLE_DEVICES": "GPU-ab12"}


def test_a_cpu_may_be_named_several_times() -> None:
    """Its workers are lanes of one device, and take turns on it."""
    (slot,) = parse_devices("cpu,cpu,cpu")
    assert (slot.name, slot.lanes, slot.environment) == ("cpu", 3, {})


@pytest.mark.usefixtures("gpus")
def test_other_names_are_refused() -> None:
    """A device that is not here, named twice or spelled otherwise is an error that quotes it."""
    for text, said in (
        ("cuda:0,cuda:0", "has cuda:0 twice"),
        ("cuda:0,cuda:4", "4 GPUs here, and cuda:4 is not one"),
        ("cuda", "'cuda' is not a device"),
        ("", "'' is not a device"),
        ("all,cuda:0", "'all' is not a device"),
    ):
        with pytest.raises(SettingsError, match=said):
            parse_devices(text)


def test_all_without_a_gpu_is_an_error(gpus: pytest.MonkeyPatch) -> None:
    """`all` means GPUs: a host without one says so, instead of building on its CPU."""
    gpus.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingsError, match="there is no GPU here"):
        parse_devices("all")


def test_a_device_outside_of_the_band_is_named() -> None:
    """The one that is 5 % slower than the device in the middle is left out, and no other one."""
    off = devices_off({"cuda:0": 100.0, "cuda:1": 105.0, "cuda:2": 101.0}, 0.03)
    assert off.keys() == {"cuda:1"}
    assert "105.0 us, +4.0% against cuda:2 (101.0 us); at most 3%" in off["cuda:1"]
    # Rows of a device with another clock are not comparable, whichever way it differs.
    assert devices_off({"cuda:0": 80.0, "cuda:1": 100.0, "cuda:2": 101.0}, 0.03).keys() == {
        "cuda:0"
    }
    # With two devices nobody can say which is the odd one; the faster one goes on.
    assert devices_off({"cuda:0": 105.0, "cuda:1": 100.0}, 0.03).keys() == {"cuda:0"}
    # One device, or several within the band of near ties, all take part.
    for times in ({}, {"cuda:0": 100.0}, {"cuda:0": 100.0, "cuda:1": 102.9}):
        assert devices_off(times, 0.03) == {}


def test_kinds_of_devices_are_not_mixed() -> None:
    """A build on GPUs of two kinds is refused, and the error names both."""
    other = make_runtime(name="NVIDIA H100", memory_gib=80)
    with pytest.raises(SettingsError) as refused:
        check_one_kind({"cuda:0": make_runtime(), "cuda:1": other})
    said = "cuda:0 is NVIDIA H200 with 132 SMs and 140 GiB, cuda:1 is NVIDIA H100 with 132 SMs and"
    assert said in str(refused.value)
    # A MIG slice beside a whole GPU of the same name is refused.
    with pytest.raises(SettingsError, match="mixes kinds"):
        check_one_kind({"cuda:0": make_runtime(), "cuda:1": make_runtime(mig="1g.18gb")})
    # Devices of one kind pass.
    check_one_kind({"cuda:0": make_runtime(), "cuda:1": make_runtime()})


BOTH = {"cuda:0", "cuda:1"}


def test_problems_are_taken_in_order() -> None:
    queue = ProblemQueue("ab")
    assert [queue.take("cuda:0", BOTH) for _ in range(3)] == ["a", "b", None]


def test_a_lost_problem_goes_to_another_device_if_there_is_one() -> None:
    """The device that lost a key takes the one after it; the other device takes the lost key."""
    queue = ProblemQueue("abc")
    first = queue.take("cuda:0", BOTH)
    assert first is not None
    assert queue.lose(first, "cuda:0", "was killed")
    assert queue.take("cuda:0", BOTH) == "b"
    assert queue.take("cuda:1", BOTH) == "a"
    # A host with one device left gives it the key that it lost.
    queue = ProblemQueue("a")
    assert queue.take("cuda:0", set()) == "a"
    queue.lose("a", "cuda:0", "was killed")
    assert queue.take("cuda:0", BOTH) is None
    assert queue.take("cuda:0", {"cuda:0"}) == "a"  # its second worker is no other device


def test_a_key_that_is_lost_twice_fails_with_both_reasons() -> None:
    """It does not wait any more, and the report names each device and what happened there."""
    queue = ProblemQueue("a")
    for device, reason, goes_on in (("cuda:0", "hung", True), ("cuda:1", "was killed", False)):
        assert queue.take(device, BOTH) == "a"
        assert queue.lose("a", device, reason) is goes_on
    assert len(queue) == 0
    assert queue.failed == {"a": "the worker on cuda:0 hung; then the worker on cuda:1 was killed"}


def test_what_no_device_is_left_for_fails() -> None:
    """Every key that waits fails with the reason, and a key that was lost before says that too."""
    queue = ProblemQueue("ab")
    queue.take("cuda:0", set())
    queue.lose("a", "cuda:0", "hung")
    queue.fail_rest("no device is left")
    assert queue.failed == {
        "a": "no device is left; the worker on cuda:0 hung",
        "b": "no device is left",
    }


def test_the_shares_are_disjoint_complete_balanced_and_stable() -> None:
    """For any N; two problems of a key stay together, and the document's order says nothing."""
    problems = [
        MissedProblem(make_key(size), "gemm", reason, 1)
        for size in range(16, 16 * 102, 16)
        for reason in ("not_in_table", "untrusted")
    ]
    other = problems[::-1]
    for count in (1, 2, 3, 7, 101):
        shares = [share_of(problems, f"{number}/{count}") for number in range(1, count + 1)]
        together = [each for share in shares for each in share]
        assert len(together) == len(problems), count
        assert set(together) == set(problems), count
        keys = [{each.key for each in share} for share in shares]
        assert sum(map(len, keys)) == 101, count
        assert max(map(len, keys)) - min(map(len, keys)) <= 1, count
        for number, share in enumerate(shares, 1):
            assert set(share_of(other, f"{number}/{count}")) == set(share), (number, count)


def test_a_share_depends_on_the_key_alone() -> None:
    """These keys stood in these shares when the hash was chosen; machines agree by it."""
    problems = [MissedProblem(make_key(size), "gemm", "not_in_table", 1) for size in (16, 32, 64)]
    assert {each.key for each in share_of(problems, "1/3")} == {make_key(32)}


def test_an_empty_share_and_a_wrong_one_are_errors() -> None:
    """More shares than problems leave some without any; I is from 1 to N."""
    problem = MissedProblem("a", "gemm", "not_in_table", 1)
    with pytest.raises(NothingRecordedError, match="2/2 is empty: the document has 1 problem"):
        share_of([problem], "2/2")
    for wrong in ("0/2", "3/2", "1", "1/0", "/", "a/b", "-1/2", "1/2/3", " 1/2", "1/1000000"):
        with pytest.raises(SettingsError, match="is no share of the problems"):
            share_of([problem], wrong)


KWARGS = (("ACC_TYPE", "tl.float32"), ("BLOCK_M", 64), ("USE_TMA", True), ("x", None))
TILE = Winner(Family.TEMPLATE, "triton::mm", KWARGS, "0123456789abcdef", fused=True)


def test_a_finished_problem_arrives_with_all_its_fields() -> None:
    """Rows, every candidate's time, counts, judgement, reasons, stages and machine are the same."""
    key, row = make_key(64), make_row()
    timing = Timing(
        winner=TILE,
        time_us=None,
        rejection=Rejection.OUT_OF_MEMORY,
        said="no memory",
        fused_us=3.5,
        along_us=((8, 1.5), (16, None)),
        host_us=2.0,
        spread=0.01,
        error=0.002,
    )
    counts = SearchCounts(
        search=Search.WIDE,
        listed=3,
        added=((CandidateSource.TMA, 4),),
        pruned=((Resource.REGISTERS, 2),),
        spilling=1,
        left_out=5,
    )
    result = BucketResult(
        bucket=Bucket((("m", 64),), (("m", 2),)),
        keys=(key,),
        tuned=1,
        judgement=CheckedOutput(error=0.1, limit=0.2, eager=0.05, remark="as is"),
        seconds=1.25,
        uncovered={"custom_op": 2},
        graphs=2,
    )
    finished = FinishedProblem(
        tuned=(Tuned(key, row, (timing,), counts), Tuned(key, row, ())),
        peaks=Peaks(tflops={"bf16": 800.5}, gbps=4000.0, clock_mhz=None, measured="2026-01-01"),
        buckets=(result,),
        not_rebuilt={key: "unknown"},
        not_tuned={"a": "b"},
        not_fused={"c": "d"},
        distrusted={"e": "f"},
        stages={BuildStage.COMPILING: 1.5},
        machine=MachineState(
            measured=2, disturbed=1, worst_share=0.2, complaints=("busy",), notes=("capped",)
        ),
    )
    assert arrived(finished) == finished


def arrived(message: DeviceMessage) -> DeviceMessage:
    """Return *message* as the other process reads it."""
    return message.from_json(json.loads(json.dumps(message.to_json())))


def test_orders_tasks_and_ready_workers_arrive_as_they_were_sent() -> None:
    """A worker gets the policy, the search and the rows of its parent, which gets its device."""
    table = make_table()
    runtime = replace(table.provenance.runtime, torch=TorchVersion("2.13.0"))
    order = WorkerOrder(
        folder="/f",
        turn="/f/turn",
        parent=7,
        options=BuildOptions(
            device="cuda:0", mode="max-autotune", tolerance=0.5, search="wide", wait_for_quiet=2.5
        ),
    )
    task = ProblemTask(key="k", rows=table.rows, is_again=True)
    ready = ReadyWorker(runtime=runtime, policy=table.policy, control_us=2.5, remarks=("hot",))
    for message in (order, task, ready):
        assert arrived(message) == message


def test_another_document_is_refused() -> None:
    """A value of another type, a field that is unknown, and one that is missing, are errors."""
    for fields in ({"key": 1}, {"key": "k", "more": 1}, {}):
        with pytest.raises(msgspec.ValidationError):
            ProblemTask.from_json(fields)


KEY = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What a worker on the CPU answers whose compiler ends with a lack of memory."""

    def fail(*_: object, **__: object) -> None:
        shortage = torch.OutOfMemoryError("CUDA out of memory.\nmore")
        raise BuildError("bucket m=16: compiling failed") from shortage

    monkeypatch.setattr(worker, "tune_rebuilt", fail)
    monkeypatch.setattr(worker, "time_control", lambda _tuner: 100.0)
    order = WorkerOrder(
        folder=str(tmp_path),
        turn=str(tmp_path / "turn"),
        parent=os.getpid(),
        options=BuildOptions(device="cpu", wait_for_quiet=0),
    )
    found: list[Mapping[str, Any]] = []

    def send(message: Mapping[str, Any]) -> None:
        found.append(message)

    task = ProblemTask(key=KEY)
    lines = [order.to_json(), task.to_json(), task.to_json()]
    requests = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
    worker.serve(requests, send)
    return found


def test_a_lack_of_memory_ends_the_worker(answers: list[Mapping[str, Any]]) -> None:
    """It is found among the causes of the error, and the second problem is not begun."""
    assert list(answers[0]) == ["ready"]
    assert answers[1:] == [{"lost": "ran out of memory: CUDA out of memory."}]
