"""`RayRunner`: the `Runner` of a worker in a Ray cluster, and `RemoteDevice`, the actor it asks."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from warmup.core.error_text import first_line
from warmup.core.version import __version__
from warmup.tuning.cluster.connection import losses, placement_on
from warmup.tuning.cluster.device_actor import DeviceActor
from warmup.tuning.cluster.slots import ClusterSlot
from warmup.tuning.devices.host import Patience, RunnerGoneError, RunnerLostError, worker_name
from warmup.tuning.devices.messages import (
    FinishedProblem,
    ProblemTask,
    ReadyWorker,
    WorkerOrder,
    from_json,
    to_json,
)

_STOP_CHECK_S: Final = 1.0
_PLACEMENT_S: Final = 120.0  # beyond the worker's own limits: Ray starts a process for the actor


@dataclass(kw_only=True)
class RemoteDevice:
    """The actor of the device *slot*, made when it is first asked, and again when it was lost.

    The other fields are those of `DeviceActor`; ``ray`` is the module.
    """

    ray: Any
    slot: ClusterSlot
    order: WorkerOrder
    patience: Patience = field(default_factory=Patience)
    command: Sequence[str] | None = None
    _actor: Any = None
    _visible: str | None = None
    _stopped: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def actor(self) -> Any:
        """Return the actor, which Ray may not have placed yet."""
        with self._lock:
            if self._actor is None:
                options = self.ray.remote(DeviceActor).options(
                    # A call of each worker, and one that stops it.
                    max_concurrency=2 * self.slot.lanes,
                    max_restarts=0,
                    scheduling_strategy=placement_on(self.slot.node_id),
                    **self.slot.resources,
                )
                self._actor = options.remote(
                    name=self.slot.name,
                    order=json.dumps(to_json(self.order)),
                    patience=json.dumps(asdict(self.patience)),
                    lanes=self.slot.lanes,
                    node_devices=self.slot.node_devices,
                    command=self.command,
                )
            return self._actor

    def check_same(self, visible: str) -> None:
        """Check that a new actor has the device of the first, whose control time is known.

        Raises:
            RunnerGoneError: it has another one, *visible*.
        """
        with self._lock:
            first = self._visible = self._visible or visible
        if visible != first:
            raise RunnerGoneError(f"started again on GPU {visible} in place of {first}")

    def forget(self, actor: Any, *, ends: bool = False) -> None:
        """Make a new actor the next time instead of *actor*, which was lost or now *ends*."""
        with self._lock:
            if self._actor is actor:
                self._actor = None
        if ends:
            with contextlib.suppress(*losses(self.ray)):
                self.ray.kill(actor)

    def ask(
        self, method: str, limit_s: float, is_stopped: Callable[[], bool], *arguments: Any
    ) -> dict[str, Any]:
        """Return the answer of *method* of the actor, unless *is_stopped* meanwhile.

        Raises:
            RunnerLostError: the actor was lost or stopped, or gave no answer in time.
        """
        if is_stopped():
            raise RunnerLostError("was stopped")
        ray, actor = self.ray, self.actor()
        deadline = time.monotonic() + limit_s + _PLACEMENT_S
        try:
            call = getattr(actor, method).remote(*arguments)
            while not ray.wait([call], timeout=_STOP_CHECK_S)[0]:
                if is_stopped():
                    raise RunnerLostError("was stopped")
                if time.monotonic() > deadline:
                    self.forget(actor, ends=True)
                    raise RunnerLostError(f"its node gave no answer for {limit_s:g} s")
            answer: dict[str, Any] = json.loads(ray.get(call))
        except losses(ray) as error:
            self.forget(actor)
            raise RunnerLostError(f"was lost: {first_line(error)}") from None
        return answer

    def stop(self, lane: int) -> None:
        """End the worker *lane* for good, and the actor with its last worker."""
        with self._lock:
            actor = self._actor
            self._stopped.add(lane)
            is_last = len(self._stopped) == self.slot.lanes
        if actor is None:
            return
        if is_last:
            self.forget(actor, ends=True)
            return
        with contextlib.suppress(*losses(self.ray)):
            actor.stop.remote(lane)


@dataclass(kw_only=True)
class RayRunner:
    """The worker *lane* of the device *remote*, which a process on another host starts and watches.

    Its limits are the patience of *remote*. Beyond them the actor is given up, as when its host
    stands still.
    """

    remote: RemoteDevice
    lane: int = 0
    _is_stopped: bool = False

    @property
    def name(self) -> str:
        """The worker, for people."""
        return worker_name(self.device, self.lane)

    @property
    def device(self) -> str:
        """The device, for people: its host, and which GPU of it."""
        return self.remote.slot.name

    def start(self) -> ReadyWorker:
        """Start the worker, and its device's actor where there is none.

        Raises:
            RunnerGoneError: it did not start, has another version of warmup, or `stop` came first.
        """
        try:
            answer = self._ask("start", self.remote.patience.start_s)
        except RunnerLostError as lost:
            raise RunnerGoneError(str(lost)) from None
        if "gone" in answer:
            raise RunnerGoneError(answer["gone"])
        if answer["version"] != __version__:
            raise RunnerGoneError(f"has warmup {answer['version']}, and this is {__version__}")
        self.remote.check_same(answer["visible"])
        return from_json(answer["ready"], ReadyWorker)

    def run(self, task: ProblemTask) -> FinishedProblem:
        """Return what came of *task*.

        Raises:
            RunnerLostError: the worker, its actor or its node was lost, or took too long.
        """
        limit_s = self.remote.patience.problem_s
        answer = self._ask("run", limit_s, json.dumps(to_json(task)))
        if "lost" in answer:
            raise RunnerLostError(answer["lost"])
        return from_json(answer["finished"], FinishedProblem)

    def stop(self) -> None:
        """End the worker for good; a call that waits for it raises."""
        self._is_stopped = True
        self.remote.stop(self.lane)

    def close(self) -> None:
        """End the worker; this process holds nothing else of it."""
        if not self._is_stopped:
            self.stop()

    def _ask(self, method: str, limit_s: float, *arguments: str) -> dict[str, Any]:
        return self.remote.ask(method, limit_s, lambda: self._is_stopped, self.lane, *arguments)
