"""Where a build writes: the path, and the table that is there already."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING

from warmup.core.runtime import Runtime
from warmup.core.version import __version__
from warmup.table import Policy, Provenance, Table
from warmup.table.store import check_same_origin, origin_differences, read

if TYPE_CHECKING:
    import torch

    from warmup.models.loading import LoadedModel


def open_table(path: Path, runtime: Runtime, policy: Policy, *, force: bool) -> tuple[Table, bool]:
    """Return the table at *path*, or an empty one, and whether it is to replace what is there.

    Raises:
        TableError: the table at *path* is damaged, or of another origin and *force* is not set.
    """
    empty = Table(_provenance(runtime), policy)
    if not path.exists():
        return empty, False
    existing = read(path)
    if force and origin_differences(existing, runtime, policy):
        return empty, True
    check_same_origin(path, existing, runtime, policy)
    return existing, False


def _provenance(runtime: Runtime) -> Provenance:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return Provenance(runtime, __version__, now.isoformat().replace("+00:00", "Z"))


def out_path(
    out: str | Path | None, runtime: Runtime, model: LoadedModel, dtype: torch.dtype | None
) -> Path:
    """Return *out*, else tables/DEVICE/MODEL.DTYPE.json below the current folder."""
    if out is not None:
        return Path(out)
    from warmup.inductor.dtypes import dtype_name

    own = next((p.dtype for p in model.module.parameters() if p.is_floating_point()), None)
    cast = dtype or own
    words = [model.name, dtype_name(cast)] if cast is not None else [model.name]
    slug = re.sub(r"[^a-z0-9.]+", "-", ".".join(words).lower()).strip("-.")
    return Path("tables") / runtime.device.slug / f"{slug}.json"
