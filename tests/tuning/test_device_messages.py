"""What a build and its workers tell each other arrives as it was sent."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from sample_tables import make_key, make_row, make_table
from torch.torch_version import TorchVersion

from warmup.core.buckets import Bucket
from warmup.core.device import MachineState
from warmup.core.method import CandidateSource, Resource, Search, SearchCounts
from warmup.core.phases import BuildStage
from warmup.core.roofline import Peaks
from warmup.core.rows import Family, Rejection, Timing, Tuned, Winner
from warmup.tuning.device_host import (
    DeviceMessage,
    FinishedProblem,
    ProblemTask,
    ReadyWorker,
    WorkerOrder,
)
from warmup.tuning.report import BucketResult, CheckedOutput
from warmup.tuning.request import BuildOptions

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
