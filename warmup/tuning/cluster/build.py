"""`build_on_cluster`: tunes missed problems on the devices of a Ray cluster at the same time.

This process, the driver, holds the queue and the table, and needs no device: what it knows of the
devices is what their workers say.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warmup.core.method import Search
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.table.policy import DEFAULT_MODE, PolicyOptions
from warmup.tuning.budget import parse_budget, parse_seconds
from warmup.tuning.cluster.connection import connected
from warmup.tuning.cluster.ray_runner import RayRunner, RemoteDevice
from warmup.tuning.cluster.slots import ClusterSlot, alive_nodes, slots_of
from warmup.tuning.devices.build import build_with
from warmup.tuning.devices.host import ALL, PROBLEM_S, Patience
from warmup.tuning.devices.messages import WorkerOrder, from_json, to_json
from warmup.tuning.report import BuildReport, Observer
from warmup.tuning.setup import check_out, refuse_imported, seconds_to_wait


def build_on_cluster(
    problems: str | Path | Sequence[MissedProblem],
    *,
    cluster: str,
    devices: str = ALL,
    out: str | Path,
    mode: str = DEFAULT_MODE,
    backends: str | None = None,
    tolerance: float | None = None,
    launch: str | None = None,
    l2: str | None = None,
    fused_top_k: int | None = None,
    search: str = Search.DEFAULT,
    force: bool = False,
    wait_for_quiet: float | None = None,
    rows_from: Sequence[str | Path] = (),
    budget: str | float | None = None,
    problem_limit_s: float = PROBLEM_S,
    observer: Observer | None = None,
) -> BuildReport:
    """Tune the problems of the misses document *problems* on *devices* of *cluster*, into *out*.

    *cluster* is the address of a Ray cluster: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
    *devices* is ``all``, the kind of a GPU such as ``H100``, ``cpu``, or ``KIND=N``. Once *budget*,
    in seconds or as text such as ``20m``, has passed, no further problem is begun, and those that
    are left are reported as not tuned. The rest is as in
    `warmup.tuning.devices.build.build_on_devices`.

    Raises:
        SettingsError: an argument cannot be used, Ray is not installed, no cluster answers, or it
            has no such devices.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        BuildError: no device started.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*.
    """
    asked = PolicyOptions(
        mode=mode,
        backends=backends,
        tolerance=tolerance,
        launch=launch,
        l2=l2,
        fused_top_k=fused_top_k,
    )
    refuse_imported(search)
    check_out(Path(out))
    missed = read_misses(problems) if isinstance(problems, (str, Path)) else problems
    seconds = None if budget is None else parse_seconds(budget, "--budget")
    order = WorkerOrder(
        device="",
        folder="",
        turn=f"warmup-{secrets.token_hex(8)}",
        parent=os.getpid(),
        policy=asked,
        search=search,
        wait_s=seconds_to_wait(wait_for_quiet),
    )
    with connected(cluster) as ray:
        runners = runners_on(
            ray,
            slots_of(devices, alive_nodes(ray.nodes())),
            order,
            Patience(problem_s=problem_limit_s),
        )
        return build_with(
            runners,  # type: ignore[arg-type]  # as a LocalRunner, but for its fields
            missed,
            out=Path(out),
            search=parse_budget(search, None).search,
            force=force,
            rows_from=rows_from,
            seconds=seconds,
            observer=observer,
        )


def runners_on(
    ray: Any,
    slots: Sequence[ClusterSlot],
    order: WorkerOrder,
    patience: Patience,
    *,
    command: Sequence[str] | None = None,
) -> list[RayRunner]:
    """Return a runner for each worker of *slots*, the first workers of all devices first.

    The other arguments are those of `RemoteDevice`; the device of *order* is filled in.
    """
    remotes = {
        slot.name: RemoteDevice(
            ray=ray,
            slot=slot,
            order=from_json({**to_json(order), "device": slot.inside}, WorkerOrder),
            patience=patience,
            command=command,
        )
        for slot in slots
    }
    lanes = range(max(slot.lanes for slot in slots))
    return [
        RayRunner(remote=remotes[slot.name], lane=lane)
        for lane in lanes
        for slot in slots
        if lane < slot.lanes
    ]
