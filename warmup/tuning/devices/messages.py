"""What a build and its workers send each other: an order, a ready worker, tasks, finished problems.

Each is sent as one JSON object: `to_json` makes it, and `from_json` reads it with `msgspec`, which
checks the type of every value. Rows travel with all their evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import field

from warmup.core.machine_state import MachineState
from warmup.core.method import Search
from warmup.core.phases import BuildStage
from warmup.core.roofline import Peaks
from warmup.core.rows import Row, Tuned
from warmup.core.runtime import Runtime
from warmup.table import Policy
from warmup.table.policy import PolicyOptions
from warmup.tuning.report import BucketResult


class DeviceMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message; other fields than its own are refused."""


_Message = TypeVar("_Message", bound=DeviceMessage)


class WorkerOrder(DeviceMessage, frozen=True, kw_only=True):
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


class ReadyWorker(DeviceMessage, frozen=True, kw_only=True):
    """A worker that has started: its device, its software, and how it measures.

    ``control_us`` is its time of the control problem, None where it was not to time it.
    ``complaints`` are about the device, and ``can_search`` says whether it has candidates beyond
    inductor's list.
    """

    runtime: Runtime
    policy: Policy
    control_us: float | None = None
    complaints: tuple[str, ...] = ()
    can_search: bool = False


class ProblemTask(DeviceMessage, frozen=True, kw_only=True):
    """A problem to tune: its key, and the ``rows`` of the table that the worker does not have yet.

    ``is_again``: a row that the key has is measured again. ``number`` of ``total`` is its
    place.
    """

    key: str
    rows: Mapping[str, Row] = field(default_factory=dict)
    is_again: bool = False
    number: int = 0
    total: int = 1


class FinishedProblem(DeviceMessage, frozen=True, kw_only=True):
    """What came of a `ProblemTask`.

    ``tuned`` has the rows that were measured for it, as they were measured, with every candidate's
    time; ``peaks`` are those of the device. The other values are those of
    `warmup.tuning.report.BuildReport`, of this problem alone; ``machine`` is the state since the
    worker started.
    """

    key: str
    tuned: tuple[Tuned, ...] = ()
    peaks: Peaks | None = None
    buckets: tuple[BucketResult, ...] = ()
    not_rebuilt: Mapping[str, str] = field(default_factory=dict)
    not_tuned: Mapping[str, str] = field(default_factory=dict)
    not_fused: Mapping[str, str] = field(default_factory=dict)
    distrusted: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[BuildStage, float] = field(default_factory=dict)
    machine: MachineState = field(default_factory=MachineState)


def to_json(message: DeviceMessage) -> dict[str, Any]:
    """Return *message* as JSON values."""
    fields: dict[str, Any] = msgspec.to_builtins(message, enc_hook=_plain)
    return fields


def _plain(value: object) -> str:
    if isinstance(value, str):  # torch's version is of a class of its own
        return str(value)
    raise NotImplementedError(type(value).__name__)


def from_json(fields: Mapping[str, Any], kind: type[_Message]) -> _Message:
    """Return the message of *kind* that `to_json` made.

    Raises:
        msgspec.ValidationError: it is another document.
    """
    return msgspec.convert(fields, kind)
