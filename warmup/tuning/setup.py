"""`BuildSetup`: the torch, device and policy of a build; also opens the table of a build."""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from warmup.core.device import Runtime
from warmup.core.errors import SettingsError, TableWriteError
from warmup.core.files import probe_folder
from warmup.core.text import __version__, printable, remedy_for
from warmup.table.schema import (
    MAX_ASSUMPTION,
    Policy,
    PolicyOptions,
    Provenance,
    Table,
    choose_policy,
)
from warmup.table.store import check_same_origin, check_writable, origin_differences, read
from warmup.tuning.report import Observer

if TYPE_CHECKING:
    import torch

    from warmup.inductor.adapter import Inductor
    from warmup.models.inputs import Assumption
    from warmup.models.loading import LoadedModel


WAIT_FOR_QUIET_S: Final = 30.0


class TableOrigin(Protocol):
    """What decides whether rows may stand in a table: where and how they are measured."""

    @property
    def runtime(self) -> Runtime:
        """The device and the software of the measurements."""

    @property
    def policy(self) -> Policy:
        """How candidates are measured."""


@dataclass(frozen=True, slots=True)
class BuildSetup:
    """A supported torch, a usable device, and the policy by which candidates are measured on it."""

    inductor: Inductor
    device: torch.device
    runtime: Runtime
    policy: Policy

    @property
    def can_search(self) -> bool:
        """Whether this device has GEMM candidates beyond those that inductor lists."""
        return self.device.type != "cpu"


def find_setup(device: str, asked: PolicyOptions) -> BuildSetup:
    """Return the setup of a build on *device*, and start inductor's compile workers.

    Raises:
        SettingsError: the device, its compiler or an option in *asked* cannot be used.
        AdapterError: this torch is not supported.
    """
    from warmup.inductor import connect, start_workers
    from warmup.inductor.machine import check_compiler, resolve_device

    start_workers(device, for_build=True)  # workers start up while this process imports the rest
    inductor = connect()
    resolved = resolve_device(device)
    check_compiler(resolved)
    policy = choose_policy(asked, resolved.type, inductor.quiet_switches())
    here = inductor.runtime(str(resolved))
    return BuildSetup(inductor, resolved, here, policy)


def watcher_of(observer: Observer | None, setup: TableOrigin) -> Observer:
    """Return *observer*, or one that ignores events, after the event that measuring begins."""
    watcher = observer or Observer()
    watcher.measuring_on(setup.runtime, setup.policy.timing)
    return watcher


def check_out(path: Path) -> None:
    """Check that a table can be written to *path*, before anything is loaded; make its folder.

    Raises:
        TableWriteError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe_folder(path)
    except OSError as error:
        advice = remedy_for(error, "make its folder writable or name another file with --out")
        raise TableWriteError(f"--out {path}", error.strerror or str(error), advice) from error


def open_table(
    path: Path,
    setup: TableOrigin,
    assumptions: Iterable[Assumption] = (),
    *,
    force: bool,
    is_read_only: bool = False,
) -> tuple[Table, bool]:
    """Return the table to add rows to, and whether its first row replaces the table at *path*.

    Its provenance has the *assumptions* of this build too.

    It is the table at *path*, an empty table where there is no file, or with *force* an empty table
    in place of one from another device, runtime or policy. With *is_read_only* nothing is written.

    Raises:
        TableError: *path* cannot be written, or its table is damaged, or without *force* of another
            device, runtime or policy.
    """
    if not is_read_only:
        check_writable(path)
    texts = [printable(one.text)[:MAX_ASSUMPTION] for one in assumptions]
    empty = Table(_provenance(setup.runtime).assuming(texts), setup.policy)
    if not path.exists():
        return empty, False
    existing = read(path)
    if force and origin_differences(existing, setup.runtime, setup.policy):
        return empty, True
    check_same_origin(path, existing, setup.runtime, setup.policy)
    return replace(existing, provenance=existing.provenance.assuming(texts)), False


def seconds_to_wait(given: float | None) -> float:
    """Return how long a build may wait for a quiet machine: *given*, else the variable, else 30.

    Raises:
        SettingsError: it is no number of seconds.
    """
    name, value = "wait_for_quiet", given
    if given is None:
        name = "WARMUP_WAIT_FOR_QUIET"
        try:
            value = float(os.environ.get(name) or WAIT_FOR_QUIET_S)
        except ValueError:
            value = math.nan
    if value is None or not 0 <= value < math.inf:
        raise SettingsError(f"{name} is no number of seconds", "give 0 for no wait, or such as 30")
    return value


def _provenance(runtime: Runtime) -> Provenance:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return Provenance(runtime, __version__, now.isoformat().replace("+00:00", "Z"))


def out_path(
    out: str | Path | None, runtime: Runtime, model: LoadedModel, dtype: torch.dtype | None
) -> Path:
    """Return *out*, else tables/DEVICE/MODEL.DTYPE.json below the current folder."""
    if out is not None:
        return Path(out)
    from warmup.core.roofline import dtype_name

    own = next((p.dtype for p in model.module.parameters() if p.is_floating_point()), None)
    cast = dtype or own
    words = [model.name, dtype_name(cast)] if cast is not None else [model.name]
    slug = re.sub(r"[^a-z0-9.]+", "-", ".".join(words).lower()).strip("-.")
    return Path("tables") / runtime.device.slug / f"{slug}.json"
