"""`GraphPlan`: the kernels that a compiled graph launches, in order, as a trace's file keeps them.

A profiler's trace names kernels and neither the decision behind a kernel nor its work. A recording
writes both beside the trace's events, under `PLAN_NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from warmup.core.errors import SettingsError
from warmup.core.text import shown

PLAN_NAME: Final = "warmup"  # of the trace's member that holds a `RecordedPlan`
PLAN_SCHEMA: Final = 1
BUCKET_MARK: Final = "warmup bucket "  # begins the annotation around each recorded call of a bucket

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # that rates can be computed from


class PlannedBy(StrEnum):
    """What makes a kernel."""

    TRITON = "triton"
    CPP = "cpp"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """A launch of the generated code, or a call of a library.

    ``name`` is the generated kernel's, or the operator of a library call (``aten.mm.out``).
    ``keys`` are those of the decisions behind it, that of its GEMM first. ``flops`` and ``moved``
    bytes are the least of a launch, None where the graph does not say.
    """

    name: str
    by: PlannedBy
    keys: tuple[str, ...]
    dtype: str
    flops: Count | None
    moved: Count | None


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The kernels of one compiled graph; ``graph`` is its key in inductor's cache."""

    graph: str
    kernels: tuple[PlannedKernel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """What a recording knows beside the events: the plans of each bucket's graphs, by bucket.

    ``calls`` are the calls of each bucket in the trace, ``clocks`` SM clocks in MHz while they ran,
    and ``table`` is the digest of the served table, if any.
    """

    plans: Mapping[str, tuple[GraphPlan, ...]]
    calls: int
    device: str
    torch: str
    table: str | None
    clocks: tuple[Count, ...]

    def to_json(self) -> dict[str, Any]:
        return {"schema": PLAN_SCHEMA, **asdict(self)}


def plan_from_json(document: Any, path: str) -> RecordedPlan:
    """Return the plan in *document*, which a trace at *path* has, or a SettingsError."""
    problem = "has another schema"
    if isinstance(document, dict) and document.get("schema") == PLAN_SCHEMA:
        try:
            return msgspec.convert(document, RecordedPlan)
        except (msgspec.ValidationError, RecursionError) as error:
            problem = f"is damaged ({shown(error)})"
    raise SettingsError(
        f"{shown(path)}: the member {PLAN_NAME!r} {problem}",
        "record the trace again with this warmup",
    )
