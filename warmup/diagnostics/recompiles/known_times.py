"""`KnownTimes`: the table and the device model that prices of `explain` come from, checked.

Both must be of the device that is explained: a time of another device says nothing about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warmup.core.errors import SettingsError
from warmup.core.runtime import Runtime, compare_runtimes, minor_of
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
        found = compare_runtimes(tuned.provenance.runtime, here)
        hard = [str(each) for each in found if each.is_hard and each.field.startswith("device.")]
        _refuse_others(f"the table {table}", hard, device.name)
    if model is not None:
        on = model.on  # which has no memory: the name tells an H100 from an H200
        pairs = (
            (on.device, device.name),
            (on.arch, device.arch),
            (on.sm_count, device.sm_count or 0),
        )
        differing = [f"{own}, here {other}" for own, other in pairs if own != other]
        _refuse_others(f"the device model {device_model}", differing, device.name)
    return KnownTimes(tuned, model)


def _refuse_others(what: str, differences: Sequence[str], explained: str) -> None:
    if differences:
        raise SettingsError(
            f"{what} is of another device than {explained}, which is explained: "
            f"{'; '.join(differences)}",
            "name a file of that device, or explain another device with --assume",
        )
