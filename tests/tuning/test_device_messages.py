"""What a build and its workers tell each other arrives as it was sent."""

from __future__ import annotations

import json
from collections.abc import Callable

from warmup.buckets.bucket import Bucket
from warmup.core.machine_state import MachineState
from warmup.core.method import Search
from warmup.core.phases import BuildStage
from warmup.core.rows import Family, Rejection, Row, Timing, Tuned, Winner
from warmup.core.search import CandidateSource, Resource, SearchCounts
from warmup.table import Table
from warmup.table.policy import PolicyOptions
from warmup.tuning.devices.messages import (
    FinishedProblem,
    ProblemTask,
    WorkerOrder,
    finished_from_json,
    finished_to_json,
    order_from_json,
    order_to_json,
    task_from_json,
    task_to_json,
)
from warmup.tuning.judge import Judgement
from warmup.tuning.report import BucketResult

KWARGS = (("ACC_TYPE", "tl.float32"), ("BLOCK_M", 64), ("USE_TMA", True), ("x", None))
TILE = Winner(Family.TEMPLATE, "triton::mm", KWARGS, "0123456789abcdef", fused=True)


def test_a_finished_problem_arrives_with_all_its_fields(
    make_table: Callable[..., Table], make_row: Callable[..., Row], make_key: Callable[..., str]
) -> None:
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
        judgement=Judgement(error=0.1, limit=0.2, eager=0.05, remark="as is"),
        seconds=1.25,
        uncovered={"custom_op": 2},
        graphs=2,
    )
    finished = FinishedProblem(
        key=key,
        table=make_table({key: row}),
        tuned=(Tuned(key, row, (timing,), counts), Tuned(key, row, ())),
        result=result,
        not_rebuilt="unknown",
        not_tuned={"a": "b"},
        not_fused={"c": "d"},
        distrusted={"e": "f"},
        stages={BuildStage.COMPILING: 1.5},
        machine=MachineState(measured=2, disturbed=1, worst_share=0.2, complaints=("busy",)),
    )
    sent = json.loads(json.dumps(finished_to_json(finished)))
    assert finished_from_json(sent) == finished


def test_a_row_that_a_worker_distrusts_is_first_saved_as_measured(
    make_table: Callable[..., Table], make_row: Callable[..., Row], make_key: Callable[..., str]
) -> None:
    """The reason is in ``distrusted``; the measurement itself is a row like any other."""
    from dataclasses import replace

    key, row = make_key(64), make_row()
    table = make_table({key: replace(row, untrusted="the output is wrong")})
    finished = FinishedProblem(key=key, table=table, tuned=(Tuned(key, row, ()),))
    (tuned,) = finished_from_json(json.loads(json.dumps(finished_to_json(finished)))).tuned
    assert tuned.row == row


def test_orders_and_tasks_arrive_as_they_were_sent(make_table: Callable[..., Table]) -> None:
    """A worker gets the policy, the search and the rows of its parent."""
    order = WorkerOrder(
        device="cuda:0",
        folder="/f",
        turn="/f/turn",
        parent=7,
        policy=PolicyOptions(mode="max-autotune", tolerance=0.5),
        search="wide",
        wait_s=2.5,
    )
    task = ProblemTask(key="k", table=make_table(), is_again=True, number=3, total=9)
    assert order_from_json(json.loads(json.dumps(order_to_json(order)))) == order
    assert task_from_json(json.loads(json.dumps(task_to_json(task)))) == task
