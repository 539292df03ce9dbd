"""What a build and its workers send each other: an order, a ready worker, tasks, finished problems.

Each is plain data that is sent as one JSON object. Rows travel as the text of a table, which the
table's own codec writes and reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from warmup.buckets.bucket import Bucket
from warmup.core.machine_state import MachineState
from warmup.core.method import Search
from warmup.core.phases import BuildStage, StageSeconds
from warmup.core.rows import Rejection, Timing, Tuned
from warmup.core.runtime import Runtime
from warmup.core.search import CandidateSource, Resource, SearchCounts
from warmup.core.trial import winner_from_json
from warmup.table import Policy, Table
from warmup.table.codec import decode, encode
from warmup.table.policy import PolicyOptions
from warmup.tuning.judge import Judgement
from warmup.tuning.report import BucketResult

Fields = Mapping[str, Any]
_SENT: Final = "a message"  # stands for the path in errors about a table that was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker needs to start: its ``device``, and how it measures.

    It measures only while it holds the lock of the file ``turn``, which all workers of one device
    share. ``folder`` is its own, empty at first. ``parent`` is the process whose descendants are
    all of this build. The first worker of a device times the control problem, for all of them.
    """

    device: str
    folder: str
    turn: str
    parent: int
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    search: str = Search.DEFAULT
    wait_s: float = 0.0
    is_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTask:
    """A problem to tune: its key, and in ``table`` the rows that the worker does not have yet.

    ``is_again``: a row that the key has is measured again. ``number`` of ``total`` is its
    place.
    """

    key: str
    table: Table
    is_again: bool = False
    number: int = 0
    total: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedProblem:
    """What came of a `ProblemTask`.

    ``table`` has the rows that were measured for it, and ``tuned`` the same with every candidate's
    time. ``result`` is None, and ``not_rebuilt`` the reason, where the key could not be rebuilt.
    The other mappings are those of `warmup.tuning.report.BuildReport`, of this problem alone;
    ``machine`` is the state since the worker started.
    """

    key: str
    table: Table
    tuned: tuple[Tuned, ...] = ()
    result: BucketResult | None = None
    not_rebuilt: str | None = None
    not_tuned: Mapping[str, str] = field(default_factory=dict)
    not_fused: Mapping[str, str] = field(default_factory=dict)
    distrusted: Mapping[str, str] = field(default_factory=dict)
    stages: StageSeconds = field(default_factory=dict)
    machine: MachineState = field(default_factory=MachineState)


def order_to_json(order: WorkerOrder) -> dict[str, Any]:
    """Return *order* as JSON values."""
    return dataclasses.asdict(order)


def order_from_json(fields: Fields) -> WorkerOrder:
    """Return the order that `order_to_json` wrote."""
    return WorkerOrder(**{**fields, "policy": PolicyOptions(**fields["policy"])})


def task_to_json(task: ProblemTask) -> dict[str, Any]:
    """Return *task* as JSON values."""
    return {
        "key": task.key,
        "table": encode(task.table),
        "is_again": task.is_again,
        "number": task.number,
        "total": task.total,
    }


def task_from_json(fields: Fields) -> ProblemTask:
    """Return the task that `task_to_json` wrote.

    Raises:
        TableFormatError: its rows are damaged.
    """
    return ProblemTask(**{**fields, "table": decode(fields["table"], _SENT)})


def finished_to_json(finished: FinishedProblem) -> dict[str, Any]:
    """Return *finished* as JSON values."""
    result = finished.result
    return {
        "key": finished.key,
        "table": encode(finished.table),
        "tuned": [
            {
                "key": tuned.key,
                "timings": [dataclasses.asdict(timing) for timing in tuned.timings],
                "searched": tuned.searched and dataclasses.asdict(tuned.searched),
            }
            for tuned in finished.tuned
        ],
        "result": result and _result_to_json(result),
        "not_rebuilt": finished.not_rebuilt,
        "not_tuned": dict(finished.not_tuned),
        "not_fused": dict(finished.not_fused),
        "distrusted": dict(finished.distrusted),
        "stages": dict(finished.stages),
        "machine": dataclasses.asdict(finished.machine),
    }


def finished_from_json(fields: Fields) -> FinishedProblem:
    """Return the finished problem that `finished_to_json` wrote.

    Raises:
        TableFormatError: its rows are damaged.
    """
    table = decode(fields["table"], _SENT)
    machine = fields["machine"]
    return FinishedProblem(
        key=fields["key"],
        table=table,
        tuned=tuple(_tuned(one, table) for one in fields["tuned"]),
        result=None if fields["result"] is None else _result(fields["result"]),
        not_rebuilt=fields["not_rebuilt"],
        not_tuned=fields["not_tuned"],
        not_fused=fields["not_fused"],
        distrusted=fields["distrusted"],
        stages={BuildStage(name): seconds for name, seconds in fields["stages"].items()},
        machine=MachineState(**{**machine, "complaints": tuple(machine["complaints"])}),
    )


def _tuned(fields: Fields, table: Table) -> Tuned:
    # What a worker distrusts is said apart: the row is first saved as it was measured.
    row = dataclasses.replace(table.rows[fields["key"]], untrusted=None)
    searched = fields["searched"]
    counts = searched and SearchCounts(
        **{
            **searched,
            "search": Search(searched["search"]),
            "added": tuple((CandidateSource(name), n) for name, n in searched["added"]),
            "pruned": tuple((Resource(name), n) for name, n in searched["pruned"]),
        }
    )
    return Tuned(fields["key"], row, tuple(map(_timing, fields["timings"])), counts)


def _timing(fields: Fields) -> Timing:
    rejection = fields["rejection"]
    return Timing(
        **{
            **fields,
            "winner": winner_from_json(fields["winner"]),
            "rejection": None if rejection is None else Rejection(rejection),
            "along_us": tuple((size, us) for size, us in fields["along_us"]),
        }
    )


def _result_to_json(result: BucketResult) -> dict[str, Any]:
    return {
        "bucket": dataclasses.asdict(result.bucket),
        "keys": list(result.keys),
        "tuned": result.tuned,
        "judgement": dataclasses.asdict(result.judgement),
        "seconds": result.seconds,
        "uncovered": dict(result.uncovered),
        "graphs": result.graphs,
    }


def _result(fields: Fields) -> BucketResult:
    bucket = fields["bucket"]
    sizes, lows = (tuple((name, n) for name, n in bucket[part]) for part in ("sizes", "lows"))
    return BucketResult(
        **{
            **fields,
            "bucket": Bucket(sizes, lows),
            "keys": tuple(fields["keys"]),
            "judgement": Judgement(**fields["judgement"]),
        }
    )


class RunnerLostError(Exception):
    """The worker died, hung or ran out of memory during a problem; the text says which."""


class RunnerGoneError(Exception):
    """The worker did not start; the text says why. No problem is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyWorker:
    """A worker that has started: an empty table of its device, runtime and policy.

    ``control_us`` is its time of the control problem, None where it was not to time it.
    ``complaints`` are about the device, and ``can_search`` says whether it has candidates beyond
    inductor's list.
    """

    table: Table
    control_us: float | None = None
    complaints: tuple[str, ...] = ()
    can_search: bool = False

    @property
    def runtime(self) -> Runtime:
        """The device and the software of the worker."""
        return self.table.provenance.runtime

    @property
    def policy(self) -> Policy:
        """How the worker measures."""
        return self.table.policy


def ready_to_json(ready: ReadyWorker) -> dict[str, Any]:
    """Return *ready* as JSON values."""
    return {
        "table": encode(ready.table),
        "control_us": ready.control_us,
        "complaints": list(ready.complaints),
        "can_search": ready.can_search,
    }


def ready_from_json(fields: Mapping[str, Any]) -> ReadyWorker:
    """Return the worker that `ready_to_json` wrote.

    Raises:
        TableFormatError: its table is damaged.
    """
    return ReadyWorker(
        table=decode(fields["table"], "a message"),
        control_us=fields["control_us"],
        complaints=tuple(fields["complaints"]),
        can_search=fields["can_search"],
    )


class Runner(Protocol):
    """One worker, which tunes one problem at a time. Its calls block; `stop` may come meanwhile.

    Who starts it stops it, and closes it when no call is under way any more.
    """

    @property
    def name(self) -> str:
        """The worker, for people; no other runner of the build has the same name."""

    @property
    def device(self) -> str:
        """The device, for people; several runners may share it."""

    def start(self) -> ReadyWorker:
        """Start the worker.

        Raises:
            RunnerGoneError: it did not start.
        """

    def run(self, task: ProblemTask) -> FinishedProblem:
        """Return what came of *task*, which needs a worker that has started.

        Raises:
            RunnerLostError: the worker was lost; `start` makes a new one, without any rows.
        """

    def stop(self) -> None:
        """End the worker, from any thread and for good: a blocked call raises."""

    def close(self) -> None:
        """Give back what the worker still holds here; closing twice is fine."""
