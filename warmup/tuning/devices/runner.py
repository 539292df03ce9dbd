"""`Runner`: a worker on one device, wherever it runs, as a build sees it.

`warmup.tuning.devices.local_runner` has the one that starts a process on this host, and
`warmup.tuning.cluster.ray_runner` that on a host of a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from warmup.core.runtime import Runtime
from warmup.table import Policy, Table
from warmup.table.codec import decode, encode
from warmup.tuning.devices.messages import FinishedProblem, ProblemTask


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
