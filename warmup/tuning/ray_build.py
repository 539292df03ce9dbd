"""`build_on_cluster`: tunes missed problems on the machines of a Ray cluster.

Each Ray task builds a small share of the problems on one GPU, or on the CPU of one machine, and
returns its rows; the driver adds them to the table on disk at once. Placement and retries are
Ray's. Driver and task exchange JSON text, so that Ray carries no object of ours.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from warmup.core.error_text import first_line, shown
from warmup.core.errors import BuildError, NothingRecordedError, SettingsError, WarmupError
from warmup.core.machine_state import united
from warmup.core.method import Search
from warmup.core.version import __version__
from warmup.diagnostics.misses import MissedProblem, encode_problems, read_misses
from warmup.table.codec import decode, digest_of, encode
from warmup.table.schema import Table
from warmup.table.store import add_rows, check_same_origin, read
from warmup.tuning.budget import parse_budget, parse_seconds
from warmup.tuning.devices.build import build_on_devices
from warmup.tuning.devices.host import ALL, GPU_LANES, VISIBLE, compile_threads
from warmup.tuning.devices.messages import FinishedProblem, from_json, to_json
from warmup.tuning.from_misses import check_built
from warmup.tuning.missed_keys import keys_with_row, missed_keys
from warmup.tuning.report import NOT_BEGUN, BuildReport, DeviceShare, Observer
from warmup.tuning.setup import check_out

_MOST_PROBLEMS: Final = 16  # of a task: what a killed worker loses
_SHARES_EACH: Final = 4  # tasks for each slot of the cluster, so that no slot is idle for long
_RETRIES: Final = 3  # of a task whose worker or node was lost
_LOOK_S: Final = 1.0
_GONE_S: Final = 45.0  # without a slot, until the build ends. After 60 s Ray ends this process
_CLIENT_PORT: Final = 10001  # of ray://HOST
_ANSWER_S: Final = 5.0  # for a connection to the head node
Task = Callable[[str], str]


def build_on_cluster(
    problems: str | Path | Sequence[MissedProblem],
    *,
    cluster: str,
    out: str | Path,
    devices: str = ALL,
    search: str = Search.DEFAULT,
    force: bool = False,
    budget: str | float | None = None,
    observer: Observer | None = None,
    task: Task | None = None,
    **how: Any,
) -> BuildReport:
    """Tune the problems of the misses document *problems* on a Ray cluster, into the table *out*.

    *cluster* is ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``. *devices* is ``all`` (every GPU),
    the kind of a GPU as Ray names it, such as ``H100``, or ``cpu``. Problems with a row in *out*
    are not tuned, so that a second run completes what a killed one has left. After *budget*, in
    seconds or text such as ``20m``, no problem is begun. *how* are arguments of `build_on_devices`,
    which each task calls; *task* takes its place.

    Raises:
        SettingsError: an argument cannot be used, Ray is not installed, no cluster answers, or it
            has no such device.
        BuildError: no machine of the cluster can tune for this table, or the cluster is gone.
        TableError: the table is damaged or not writable.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*.
    """
    started, path = time.monotonic(), Path(out)
    searched = parse_budget(search, None).search
    check_out(path)
    deadline = math.inf if budget is None else started + parse_seconds(budget, "--budget")
    if isinstance(problems, (str, Path)):
        problems = read_misses(problems)
    missed = missed_keys(problems)
    table = read(path) if path.exists() else None
    rows = {} if table is None else table.rows
    known = keys_with_row(missed, rows, searched, force=force)
    wanted = {each.key: each for each in problems if each.key in missed.keys() - set(known)}
    how = {**how, "search": search}
    driver = _Driver(path, table, wanted, observer or Observer(), deadline=deadline, how=how)
    if wanted:
        with _connected(cluster) as (ray, head):
            driver.run(ray, head, devices, task or tune_share)
    results = driver.results
    not_rebuilt = _joined(each.not_rebuilt for each in results)
    not_tuned = {**_joined(each.not_tuned for each in results), **driver.failed}
    check_built(path, missed, {**not_rebuilt, **not_tuned})
    final = read(path)
    return BuildReport(
        path,
        final,
        digest_of(final),
        tuple(one for each in results for one in each.buckets),
        tuple(one for each in results for one in each.tuned),
        time.monotonic() - started,
        known,
        not_rebuilt,
        not_tuned,
        _joined(each.not_fused for each in results),
        final.provenance.peaks,
        distrusted=_joined(each.distrusted for each in results),
        machine=united([each.machine for each in results]),
        stages={
            stage: sum(each.stages.get(stage, 0.0) for each in results)
            for stage in dict.fromkeys(stage for each in results for stage in each.stages)
        },
        devices=tuple(driver.shares.values()),
    )


class _Driver:
    """The shares of a build, and what came of them; each finished share is in the table on disk."""

    def __init__(
        self,
        path: Path,
        table: Table | None,
        wanted: Mapping[str, MissedProblem],
        observer: Observer,
        *,
        deadline: float,
        how: Mapping[str, Any],
    ) -> None:
        self.path, self.table, self.wanted = path, table, wanted
        self.observer, self.deadline, self.how = observer, deadline, how
        self.waiting: list[list[str]] = []
        self.under_way: dict[Any, list[str]] = {}
        self.usable_at = 0.0  # when the cluster was last seen with a slot
        self.results: list[FinishedProblem] = []
        self.failed: dict[str, str] = {}
        self.shares: dict[str, DeviceShare] = {}
        self.refused: dict[str, str] = {}  # by node, why it cannot tune for this table

    def run(self, ray: Any, head: tuple[str, int], devices: str, task: Task) -> None:
        """Give tasks with all problems to the cluster, and add their rows to the table.

        *head* is the host and port that answer as long as there is a cluster.

        Raises:
            SettingsError: the cluster has no such device.
            BuildError: every machine was refused, or the cluster is gone.
            TableError: the table cannot be written.
        """
        keys, (slots, _) = list(self.wanted), _slots(devices, ray.nodes(), self.refused)
        if not slots:
            raise SettingsError(
                f"--devices {shown(devices)}: the cluster has no such device",
                "use all, cpu or a kind of GPU that `ray status` names",
            )
        size = max(1, min(_MOST_PROBLEMS, math.ceil(len(keys) / (_SHARES_EACH * slots))))
        self.waiting = [keys[start : start + size] for start in range(0, len(keys), size)]
        remote, self.usable_at = ray.remote(task), time.monotonic()
        try:
            while self.waiting or self.under_way:
                for call in self._step(ray, head, devices, remote):
                    share = self.under_way.pop(call)
                    if not self._take(ray, call, share):
                        self.waiting.insert(0, share)
        finally:
            for call in self.under_way:
                with contextlib.suppress(*_losses(ray)):
                    ray.cancel(call, force=True)

    def _step(self, ray: Any, head: tuple[str, int], devices: str, remote: Any) -> list[Any]:
        """Begin the tasks that have room, and return those that finish within `_LOOK_S`."""
        if time.monotonic() >= self.deadline:
            self.failed |= {key: NOT_BEGUN for share in self.waiting for key in share}
            self.waiting.clear()
        try:
            slots, resources = _slots(devices, _nodes(ray, head), self.refused)
            while self.waiting and len(self.under_way) < slots:
                options = remote.options(max_retries=_RETRIES, **resources)
                call = options.remote(self._request(self.waiting[0]))
                self.under_way[call] = self.waiting.pop(0)
            calls = list(self.under_way)
            done: list[Any] = ray.wait(calls, timeout=_LOOK_S)[0] if calls else []
        except _losses(ray):
            slots, done = 0, []
        now, left = time.monotonic(), self.waiting or self.under_way
        if slots or done or not left:
            self.usable_at = now
        elif (self.refused and not self.under_way) or now - self.usable_at > _GONE_S:
            self._end(devices)
        else:
            time.sleep(_LOOK_S)  # a node may come back
        return done

    def _end(self, devices: str) -> NoReturn:
        left = sum(map(len, (*self.waiting, *self.under_way.values())))
        if self.refused:
            raise BuildError(
                f"no machine can tune: {'; '.join(dict.fromkeys(self.refused.values()))}",
                "build for each device into a table of its own",
            )
        raise BuildError(
            f"--devices {shown(devices)}: the cluster has had no such device for {_GONE_S:.0f} s, "
            f"and {left} problems are not tuned",
            "start its nodes, and the same command again: finished problems are in the table",
        )

    def _request(self, share: Sequence[str]) -> str:
        counts = {(key, self.wanted[key].reason): 1 for key in share}
        table = self.table
        if table is not None:  # without rows that are to be measured again
            rows = {key: row for key, row in table.rows.items() if key not in share}
            table = replace(table, rows=rows)
        seconds = self.deadline - time.monotonic()
        return json.dumps(
            {
                "version": __version__,
                "misses": encode_problems(counts, ()),
                "table": None if table is None else encode(table),
                "how": {**self.how, "seconds": None if math.isinf(seconds) else seconds},
            }
        )

    def _take(self, ray: Any, call: Any, share: Sequence[str]) -> bool:
        """Keep what came of *share*; return whether it is done, and not for another machine."""
        try:
            answer = json.loads(ray.get(call, timeout=_GONE_S))
        except _losses(ray) as error:
            self.failed |= dict.fromkeys(share, f"its task was lost: {first_line(error)}")
            return True
        node, name = answer["node"], answer["name"]
        if "refused" in answer:
            return self._refuse(node, name, answer["refused"])
        if "failed" in answer:
            self.failed |= dict.fromkeys(share, answer["failed"])
            return True
        finished = from_json(answer["finished"], FinishedProblem)
        built = decode(answer["table"], name)
        rows, origin, policy = built.rows, built.provenance, built.policy
        if self.table is None:
            self.observer.measuring_on(origin.runtime, policy.timing)
        else:
            try:
                check_same_origin(self.path, self.table, origin.runtime, policy)
            except WarmupError as error:
                return self._refuse(node, name, str(error))
        if rows:
            known = {} if self.table is None else self.table.rows
            fresh = {k: row for k, row in rows.items() if k in share or k not in known}
            self.table = add_rows(self.path, origin, policy, fresh, redo=True)
        self.results.append(finished)
        for tuned in finished.tuned:
            self.observer.problem_finished(tuned)
        before = self.shares.get(name, DeviceShare(name=name, problems=0))
        count = before.problems + len(share)
        self.shares[name] = replace(before, problems=count, control_us=answer["control_us"])
        return True

    def _refuse(self, node: str, name: str, reason: str) -> bool:
        self.refused[node] = f"{name}: {reason}"
        self.shares[name] = replace(
            self.shares.get(name, DeviceShare(name=name, problems=0)), left_out=reason
        )
        self.observer.device_left_out(name, reason)
        return False


def tune_share(request: str) -> str:
    """Return what came of the problems of *request* on the device that Ray gave this task.

    That is a JSON object with the rows, or with ``refused``, why this machine cannot tune for the
    table: its device, its software, or a device that does not start.
    """
    import ray

    asked, node = json.loads(request), ray.get_runtime_context().get_node_id()
    gpu = os.environ.get(VISIBLE) if ray.get_gpu_ids() else None
    name = platform.node() + (f" gpu {gpu}" if gpu else "")
    listed: Any = ray.nodes
    gpus = next(int(n["Resources"].get("GPU", 0)) for n in listed() if n["NodeID"] == node)
    if gpu:
        os.environ.update(compile_threads(GPU_LANES * gpus, devices=gpus))
    if asked["version"] != __version__:
        refused = f"it has warmup {__version__}, and the driver {asked['version']}"
        return json.dumps({"node": node, "name": name, "refused": refused})
    with tempfile.TemporaryDirectory(prefix="warmup-share-") as folder:
        misses, out = Path(folder, "misses.json"), Path(folder, "rows.json")
        misses.write_text(asked["misses"], encoding="utf-8")
        if asked["table"] is not None:
            out.write_text(asked["table"], encoding="utf-8")
        try:
            report = build_on_devices(
                misses,
                devices="cuda:0" if gpu else "cpu",
                out=out,
                parent=os.getppid(),  # Ray's process of this node, whose other tasks are ours
                **asked["how"],
            )
        except NothingRecordedError as error:
            return json.dumps({"node": node, "name": name, "failed": str(error)})
        except WarmupError as error:
            return json.dumps({"node": node, "name": name, "refused": str(error)})
    tuned = {one.key: report.table.rows[one.key] for one in report.timings}
    finished = FinishedProblem(
        key="",
        tuned=report.timings,
        buckets=report.buckets,
        not_rebuilt=report.not_rebuilt,
        not_tuned=report.not_tuned,
        not_fused=report.not_fused,
        distrusted=report.distrusted,
        stages=report.stages,
        machine=report.machine,
    )
    return json.dumps(
        {
            "node": node,
            "name": name,
            "control_us": report.devices[0].control_us,
            "table": encode(replace(report.table, rows=tuned)),
            "finished": to_json(finished),
        }
    )


def _slots(
    devices: str, nodes: Sequence[Mapping[str, Any]], refused: Mapping[str, str]
) -> tuple[int, dict[str, Any]]:
    """Return how many tasks have room at once, and what Ray is to give to each of them.

    On a CPU a task has all cores of a node, so that nothing of this build disturbs its times.
    """
    alive = [n["Resources"] for n in nodes if n["Alive"] and n["NodeID"] not in refused]
    options: dict[str, Any] = {}
    if refused:
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(refused)})"}
    if devices == "cpu":
        cpus = max((int(each.get("CPU", 0)) for each in alive), default=0)
        slots = sum(int(each.get("CPU", 0)) == cpus for each in alive) if cpus else 0
        return slots, {"num_cpus": cpus, **options}
    options |= {"num_cpus": 0, "num_gpus": 1}
    if devices != ALL:
        options["accelerator_type"] = devices
        alive = [each for each in alive if f"accelerator_type:{devices}" in each]
    return sum(int(each.get("GPU", 0)) for each in alive), options


def _nodes(ray: Any, head: tuple[str, int]) -> Sequence[Mapping[str, Any]]:
    """Return the nodes of the cluster, none if its head does not answer.

    Without a head, `ray.nodes` waits until Ray ends this process.
    """
    try:
        with socket.create_connection(head, timeout=_ANSWER_S):
            nodes: Sequence[Mapping[str, Any]] = ray.nodes()
    except _losses(ray):
        return ()
    return nodes


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: why for part in parts for key, why in part.items()}


def _losses(ray: Any) -> tuple[type[Exception], ...]:
    grpc: Any = sys.modules.get("grpc")  # of Ray Client, which passes its errors on
    return (ray.exceptions.RayError, OSError, *([grpc.RpcError] if grpc else []))


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
