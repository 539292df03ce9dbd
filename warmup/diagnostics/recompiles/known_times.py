"""`KnownTimes`: the table and the device model that prices of `explain` come from, checked.

Both must be of the device that is explained: a time of another device says nothing about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warmup.core.errors import SettingsError
from warmup.core.runtime import Device, Runtime, minor_of
from warmup.prediction.device_model import Predictor
from warmup.prediction.gemm_times import GemmTimes
from warmup.prediction.model_file import read_device_model
from warmup.table.store import read

if TYPE_CHECKING:
    from warmup.prediction.device_model import DeviceModel
    from warmup.table import Table


@dataclass(frozen=True)
class KnownTimes:
    """A table and a device model of one device, either of which may be missing."""

    table: Table | None
    model: DeviceModel | None

    @property
    def gemms(self) -> GemmTimes:
        """What is known of GEMMs: only rows that are served count."""
        rows = {} if self.table is None else self.table.rows
        trusted = {key: row for key, row in rows.items() if row.untrusted is None}
        return GemmTimes(trusted, None if self.model is None else Predictor(self.model))

    def caveat(self, torch: str) -> str | None:
        """Return what to know of a table that was built with another minor of *torch*."""
        built = None if self.table is None else self.table.provenance.runtime.torch
        if built is None or minor_of(built) == minor_of(torch):
            return None
        return f"the table is of torch {built}: torch {torch} may ask for other rows"


def known_times(
    table: str | Path | None, device_model: str | Path | None, here: Runtime
) -> KnownTimes | None:
    """Return what the files *table* and *device_model* know of the device of *here*.

    None where neither is given.

    Raises:
        TableError: the table cannot be read.
        DeviceModelError: the device model cannot be read, or was trained on too little.
        SettingsError: a file is of another device.
    """
    if table is None and device_model is None:
        return None
    tuned = None if table is None else read(table)
    model = None if device_model is None else read_device_model(device_model)
    device = here.device
    if tuned is not None:
        of = tuned.provenance.runtime.device
        _check(f"the table {table}", of.name, (of.arch, of.sm_count), device)
    if model is not None:
        _check(
            f"the device model {device_model}",
            model.on.device,
            (model.on.arch, model.on.sm_count),
            device,
        )
    return KnownTimes(tuned, model)


def _check(what: str, name: str, facts: tuple[str, int | None], device: Device) -> None:
    if facts != (device.arch, device.sm_count):
        raise SettingsError(
            f"{what} is of {name}, and {device.name} is explained",
            "name a file of that device, or explain another device with --assume",
        )
