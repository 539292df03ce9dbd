"""`Cluster`: the runner that tunes problems on the machines of a Ray cluster.

Each Ray task does a `BuildRequest` for a small share of the problems on one GPU, or on the CPU of
one machine; the driver adds its rows to the table on disk at once. Placement and retries are Ray's.
Driver and task exchange JSON values: Ray carries no object of ours, which two versions may read
otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from warmup.core.errors import (
    BuildError,
    NothingRecordedError,
    SettingsError,
    TableMismatchError,
    WarmupError,
)
from warmup.core.files import temporary_folder
from warmup.core.text import __version__, first_line, shown
from warmup.table.codec import encode
from warmup.table.schema import Table
from warmup.table.store import check_same_origin, read
from warmup.tuning.build import BuildOptions, BuildRequest, build
from warmup.tuning.devices import (
    ALL,
    GPU_LANES,
    PROBLEM_S,
    VISIBLE,
    Devices,
    ReadyWorker,
    SharedBuild,
    compile_threads,
    to_message,
)
from warmup.tuning.problems import ProblemsSource, as_problems
from warmup.tuning.report import NOT_BEGUN, BuildReport, Observer, ProblemResults

_MOST_PROBLEMS: Final = 16  # of a task: what a killed worker loses
_SHARES_EACH: Final = 4  # tasks for each slot of the cluster, so that no slot is idle for long
_RETRIES: Final = 3  # of a task whose worker or node was lost
_LOOK_S: Final = 1.0
_GONE_S: Final = 45.0  # without a slot, until the build ends. After 60 s Ray ends this process
_CLIENT_PORT: Final = 10001  # of ray://HOST
_ANSWER_S: Final = 5.0  # for a connection to the head node
Task = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The runner on the Ray cluster at ``address``: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.

    ``devices`` is ``all`` (every GPU), the kind of a GPU as Ray names it, such as ``H100``, or
    ``cpu``. Problems with a row in the table are not tuned, so that a second run completes what a
    killed one has left. ``task`` takes the place of `tune_share`.
    """

    label: ClassVar[str] = "--cluster"
    first_device: ClassVar[str] = "auto"

    address: str
    devices: str = ALL
    problem_limit_s: float = PROBLEM_S
    task: Task | None = None

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        of_source = () if isinstance(request.source, ProblemsSource) else ("model",)
        return frozenset({"device", "dry_run", "rows_from", *of_source})

    def tune(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Give the problems of *request* to tasks, and merge their rows.

        A SettingsError says that Ray, a cluster or the device is not there, a BuildError that no
        machine can tune for this table, or that the cluster is gone.
        """
        build = SharedBuild(request=request, observer=observer)
        table = read(request.path) if request.path.exists() else None
        if keys := build.split({} if table is None else table.rows):
            with _connected(self.address) as (ray, head):
                driver = _Driver(ray, head, self, build, table)
                driver.run(keys, self.task or tune_share)
        return build.report()


@dataclass
class _Driver:
    """The shares of a build on the cluster to which the module ``ray`` is connected.

    ``head`` answers as long as there is a cluster. ``refused`` says, by node, why it cannot tune.
    """

    ray: Any
    head: tuple[str, int]
    cluster: Cluster
    build: SharedBuild
    table: Table | None  # of before this build
    refused: dict[str, str] = field(default_factory=dict)
    waiting: list[list[str]] = field(default_factory=list)
    under_way: dict[Any, list[str]] = field(default_factory=dict)
    usable_at: float = 0.0  # when the cluster was last seen with a slot

    def run(self, keys: Sequence[str], task: Task) -> None:
        slots, _ = self._room()
        if not slots:
            raise SettingsError(
                f"--devices {shown(self.cluster.devices)}: the cluster has no such device",
                "use all, cpu or a kind of GPU that `ray status` names",
            )
        size = max(1, min(_MOST_PROBLEMS, math.ceil(len(keys) / (_SHARES_EACH * slots))))
        self.waiting = [list(keys[start : start + size]) for start in range(0, len(keys), size)]
        remote, self.usable_at = self.ray.remote(task), time.monotonic()
        try:
            while self.waiting or self.under_way:
                for call in self._step(remote):
                    share = self.under_way.pop(call)
                    if not self._merge(call, share):
                        self.waiting.insert(0, share)
        finally:
            for call in self.under_way:
                with contextlib.suppress(*self._losses):
                    self.ray.cancel(call, force=True)

    def _step(self, remote: Any) -> list[Any]:
        if time.monotonic() >= self.build.deadline:
            self.build.failed |= {key: NOT_BEGUN for share in self.waiting for key in share}
            self.waiting.clear()
        try:
            slots, resources = self._room()
            while self.waiting and len(self.under_way) < slots:
                options = remote.options(max_retries=_RETRIES, **resources)
                call = options.remote(self._request(self.waiting[0]))
                self.under_way[call] = self.waiting.pop(0)
            calls = list(self.under_way)
            done: list[Any] = self.ray.wait(calls, timeout=_LOOK_S)[0] if calls else []
        except self._losses:
            slots, done = 0, []
        now, left = time.monotonic(), [*self.waiting, *self.under_way.values()]
        if slots or done or not left:
            self.usable_at = now
        elif self.refused and not self.under_way:
            raise BuildError(
                f"no machine can tune: {'; '.join(dict.fromkeys(self.refused.values()))}",
                "build for each device into a table of its own",
            )
        elif now - self.usable_at > _GONE_S:
            raise BuildError(
                f"--devices {shown(self.cluster.devices)}: the cluster has had no such device for "
                f"{_GONE_S:.0f} s, and {sum(map(len, left))} problems are not tuned",
                "start its nodes, and the same command again: finished problems are in the table",
            )
        else:
            time.sleep(_LOOK_S)  # a node may come back
        return done

    def _room(self) -> tuple[int, dict[str, Any]]:
        """Return how many tasks have room at once, and what Ray is to give to each of them."""
        # On a CPU a task has all cores of a node, so that nothing of this build disturbs its times.
        nodes: Sequence[Mapping[str, Any]] = ()
        # Without a head, `ray.nodes` waits until Ray ends this process.
        with (
            contextlib.suppress(*self._losses),
            socket.create_connection(self.head, timeout=_ANSWER_S),
        ):
            nodes = self.ray.nodes()
        alive = [
            each["Resources"]
            for each in nodes
            if each["Alive"] and each["NodeID"] not in self.refused
        ]
        options: dict[str, Any] = {}
        if self.refused:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self.refused)})"}
        kind = self.cluster.devices
        if kind == "cpu":
            cpus = max((int(each.get("CPU", 0)) for each in alive), default=0)
            slots = sum(int(each.get("CPU", 0)) == cpus for each in alive) if cpus else 0
            return slots, {"num_cpus": cpus, **options}
        if kind != ALL:
            options["accelerator_type"] = kind
            alive = [each for each in alive if f"accelerator_type:{kind}" in each]
        slots = sum(int(each.get("GPU", 0)) for each in alive)
        return slots, {"num_cpus": 0, "num_gpus": 1, **options}

    @property
    def _losses(self) -> tuple[type[Exception], ...]:
        grpc: Any = sys.modules.get("grpc")  # of Ray Client, which passes its errors on
        return (self.ray.exceptions.RayError, OSError, *([grpc.RpcError] if grpc else []))

    def _request(self, share: Sequence[str]) -> dict[str, Any]:
        build, seconds = self.build, self.build.deadline - time.monotonic()
        budget = None if math.isinf(seconds) else max(0.0, seconds)
        options = replace(build.request.options, budget=budget, force=False)
        table = self.table if build.progress is None else build.progress.table
        if table is not None:  # without rows that are to be measured again
            rows = {key: row for key, row in table.rows.items() if key not in share}
            table = replace(table, rows=rows)
        return {
            "version": __version__,
            "keys": share,
            "table": None if table is None else encode(table),
            "options": to_message(options),
            "problem_limit_s": self.cluster.problem_limit_s,
        }

    def _merge(self, call: Any, share: Sequence[str]) -> bool:
        build = self.build
        try:
            answer = self.ray.get(call, timeout=_GONE_S)
        except self._losses as error:
            answer = {"failed": f"its task was lost: {first_line(error)}"}
        if "failed" in answer:
            build.failed |= dict.fromkeys(share, answer["failed"])
            return True
        name, refused = answer["name"], answer.get("refused")
        if refused is None:
            ready = msgspec.convert(answer["ready"], ReadyWorker)
            try:
                table = (build.progress or build.open(ready)).table
                check_same_origin(build.request.path, table, ready.runtime, ready.policy)
            except TableMismatchError as error:
                refused = str(error)
        if refused is not None:
            self.refused[answer["node"]] = f"{name}: {refused}"
            build.leave_out(name, refused)
            return False
        results = msgspec.convert(answer["finished"], ProblemResults)
        build.add(results, share, name)
        build.machines[name, len(build.results)] = results.machine
        build.note(name, control_us=ready.control_us)
        return True


def tune_share(request: dict[str, Any]) -> dict[str, Any]:
    """Return what came of the problems of *request* on the device that Ray gave this task."""
    # That is ``finished``, or ``refused``, why this machine cannot tune for the table: its device,
    # its software, or a device that does not start.
    import ray

    node = ray.get_runtime_context().get_node_id()
    gpu = os.environ.get(VISIBLE) if ray.get_gpu_ids() else None
    answer = {"node": node, "name": platform.node() + (f" gpu {gpu}" if gpu else "")}
    listed: Any = ray.nodes
    gpus = next(int(n["Resources"].get("GPU", 0)) for n in listed() if n["NodeID"] == node)
    if gpu:
        os.environ.update(compile_threads(GPU_LANES * gpus, devices=gpus))
    if request["version"] != __version__:
        refused = f"it has warmup {__version__}, and the driver {request['version']}"
        return {**answer, "refused": refused}
    with temporary_folder("warmup-share-") as folder:
        out = folder / "rows.json"
        if request["table"] is not None:
            out.write_text(request["table"], encoding="utf-8")
        runner = Devices(
            names="cuda:0" if gpu else "cpu",
            problem_limit_s=request["problem_limit_s"],
            parent=os.getppid(),  # Ray's process of this node, whose other tasks are ours
        )
        try:
            report = build(
                BuildRequest(
                    source=ProblemsSource(as_problems(request["keys"])),
                    runner=runner,
                    out=out,
                    options=msgspec.convert(request["options"], BuildOptions),
                )
            )
        except NothingRecordedError as error:
            return {**answer, "failed": str(error)}
        except WarmupError as error:
            return {**answer, "refused": str(error)}
    ready = ReadyWorker(
        runtime=report.table.provenance.runtime,
        policy=report.table.policy,
        control_us=report.devices[0].control_us,
    )
    finished = ProblemResults(**report.results())
    return {**answer, "ready": to_message(ready), "finished": to_message(finished)}


@contextlib.contextmanager
def _connected(address: str) -> Iterator[tuple[Any, tuple[str, int]]]:
    """Connect to the cluster at *address*, and yield the module ``ray`` and where its head answers.

    Meanwhile ``sys.stdout`` is ``sys.stderr``: a thread of Ray's prints there that a worker was
    lost, and stdout has the report alone.
    """
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a lost cluster is not replaced
    try:
        import ray
    except ImportError as error:
        raise SettingsError(
            f"--cluster needs Ray: {error}", "pip install 'inductor-warmup[ray]'"
        ) from None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, TimeoutError, ValueError, RuntimeError, ImportError) as error:
            raise SettingsError(
                f"--cluster {shown(address)}: no cluster answers: {first_line(error)}",
                "start one with `ray start --head`, and name its address",
            ) from None
        try:
            client = address.startswith("ray://")
            head = address if client else f"ray://{ray.get_runtime_context().gcs_address}"
            url = urlsplit(head)
            yield ray, (url.hostname or "", url.port or _CLIENT_PORT)
        finally:
            ray.shutdown()
