"""`GraphPlan`: the kernels that a compiled graph launches, in order, as a trace's file keeps them.

A profiler's trace names kernels and neither the decision behind a kernel nor its work. A recording
writes both beside the trace's events, under `PLAN_NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError

PLAN_NAME: Final = "warmup"  # of the trace's member that holds a `RecordedPlan`
PLAN_SCHEMA: Final = 1
_MOST_COUNTED: Final = 1 << 62  # operations or bytes of one launch
_RECORD_AGAIN: Final = "record the trace again with this warmup"
BUCKET_MARK: Final = "warmup bucket "  # begins the annotation around each recorded call of a bucket


class PlannedBy(StrEnum):
    """What makes a kernel."""

    TRITON = "triton"
    CPP = "cpp"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """One launch of the generated code, or one call of a library.

    ``name`` is the generated kernel's, or the operator of a library call (``aten.mm.out``).
    ``keys`` are the keys of the decisions behind it: that of its GEMM first. ``flops`` and
    ``moved`` bytes are the least of one launch, None where the graph does not say.
    """

    name: str
    by: PlannedBy
    keys: tuple[str, ...] = ()
    dtype: str = ""
    flops: int | None = None
    moved: int | None = None


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The kernels of one compiled graph; ``graph`` is its key in inductor's cache."""

    graph: str
    kernels: tuple[PlannedKernel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """What a recording knows beside the events: the plans of each bucket's graphs, by bucket.

    ``calls`` are the calls of each bucket that the trace has. ``clocks`` are SM clocks in MHz that
    were read while the calls ran, ``device`` is the device's name, ``table`` the digest of the
    table that was served, None without a table.
    """

    plans: Mapping[str, tuple[GraphPlan, ...]]
    calls: int
    device: str
    torch: str
    table: str | None = None
    clocks: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {"schema": PLAN_SCHEMA, **asdict(self)}


def plan_from_json(document: Any, path: str) -> RecordedPlan:
    """Return the plan in *document*, which a trace at *path* has.

    Raises:
        SettingsError: it is none, or of another schema.
    """
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
        raise SettingsError(
            f"{shown(path)}: the member {PLAN_NAME!r} has another schema", _RECORD_AGAIN
        )
    try:
        plans = {
            str(bucket): tuple(_graph_from_json(graph) for graph in graphs)
            for bucket, graphs in document["plans"].items()
        }
        table = document["table"]
        return RecordedPlan(
            plans=plans,
            calls=int(document["calls"]),
            device=str(document["device"]),
            torch=str(document["torch"]),
            table=None if table is None else str(table),
            clocks=tuple(_count(clock) or 0 for clock in document["clocks"]),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise SettingsError(
            f"{shown(path)}: the member {PLAN_NAME!r} is damaged "
            f"({type(error).__name__}: {shown(error)})",
            _RECORD_AGAIN,
        ) from error


def _graph_from_json(graph: Any) -> GraphPlan:
    return GraphPlan(
        str(graph["graph"]),
        tuple(
            PlannedKernel(
                name=str(kernel["name"]),
                by=PlannedBy(kernel["by"]),
                keys=tuple(map(str, kernel["keys"])),
                dtype=str(kernel["dtype"]),
                flops=_count(kernel["flops"]),
                moved=_count(kernel["moved"]),
            )
            for kernel in graph["kernels"]
        ),
    )


def _count(value: Any) -> int | None:
    """Return *value* as a whole number that rates can be computed from."""
    if value is not None and not 0 <= int(value) < _MOST_COUNTED:
        raise ValueError(f"no count: {value}")
    return None if value is None else int(value)
