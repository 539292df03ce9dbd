"""`DeviceActor`: the workers of one device of a cluster, on its node.

Ray makes an actor of it. It starts and watches its workers as a build on one host does. Driver and
actor exchange JSON objects as text, so that Ray carries no object of ours.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from warmup.core.version import __version__
from warmup.tuning.devices.host import (
    VISIBLE,
    WORKER_COMMAND,
    LocalRunner,
    Patience,
    RunnerGoneError,
    RunnerLostError,
    compile_threads,
    worker_name,
)
from warmup.tuning.devices.messages import ProblemTask, WorkerOrder, from_json, to_json


class DeviceActor:
    """The workers of the device *name*, each of which does *order*, an order as JSON.

    ``turn`` of the order is a name, under which all workers of a device of this host take turns.
    The device has *lanes* workers; those of *node_devices* devices share the CPU cores of this
    node. *patience* has the fields of `Patience`, *command* starts another worker.
    """

    def __init__(
        self,
        *,
        name: str,
        order: str,
        patience: str,
        lanes: int,
        node_devices: int,
        command: Sequence[str] | None,
    ) -> None:
        self._name = name
        self._visible = os.environ.get(VISIBLE) or "cpu"
        self._folder = tempfile.TemporaryDirectory(prefix="warmup-device-")
        self._order = self._made_local(from_json(json.loads(order), WorkerOrder))
        self._patience = Patience(**json.loads(patience))
        self._environment = compile_threads(lanes * node_devices, devices=node_devices)
        self._command = command or WORKER_COMMAND
        self._runners: dict[int, LocalRunner] = {}

    def start(self, lane: int) -> str:
        """Start the worker *lane*; return what it says when it is ready, or ``gone`` and why."""
        if lane not in self._runners:
            self._runners[lane] = LocalRunner(
                name=worker_name(self._name, lane),
                device=self._name,
                order=from_json({**to_json(self._order), "is_first": not lane}, WorkerOrder),
                environment=self._environment,
                patience=self._patience,
                command=self._command,
            )
        try:
            ready = self._runners[lane].start()
        except RunnerGoneError as error:
            return json.dumps({"gone": str(error)})
        own = {"version": __version__, "visible": self._visible}
        return json.dumps({"ready": to_json(ready), **own})

    def run(self, lane: int, task: str) -> str:
        """Return what came of *task* on the worker *lane*, or ``lost`` and how it was lost."""
        try:
            finished = self._runners[lane].run(from_json(json.loads(task), ProblemTask))
        except RunnerLostError as error:
            return json.dumps({"lost": str(error)})
        return json.dumps({"finished": to_json(finished)})

    def stop(self, lane: int) -> None:
        """End the worker *lane* for good."""
        if lane in self._runners:
            self._runners[lane].close()

    def _made_local(self, order: WorkerOrder) -> WorkerOrder:
        """Return *order* with the paths of this host."""
        folder = Path(self._folder.name)
        turn = f"{order.turn}-{self._visible.replace('/', '-')}"
        own = {
            "folder": str(folder),
            "turn": str(Path(tempfile.gettempdir()) / turn),
            # Ray's process of this node, from which the workers of its other devices descend too.
            "parent": os.getppid(),
        }
        return from_json({**to_json(order), **own}, WorkerOrder)
