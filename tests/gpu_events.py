"""Traces as torch.profiler writes them on an NVIDIA GPU, made up event by event."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmup.core.roofline import BUCKET_MARK, GraphPlan, RecordedPlan

DEVICE = "NVIDIA H100 80GB HBM3"


@dataclass
class GpuTrace:
    """Events of one thread and one stream; times in microseconds."""

    events: list[dict[str, Any]] = field(default_factory=list)
    ids: Any = field(default_factory=lambda: itertools.count(1))

    def host(self, name: str, begin: float, us: float, category: str, **arguments: Any) -> None:
        place = {"ph": "X", "cat": category, "pid": 1, "tid": 1, "args": arguments}
        self.events.append({**place, "name": name, "ts": begin, "dur": us})

    def call(self, bucket: str, graph: str, begin: float, us: float) -> None:
        self.host(f"{BUCKET_MARK}{bucket}", begin, us, "user_annotation")
        self.host(f"## Call CompiledFxGraph {graph} ##", begin + 1, us - 2, "user_annotation")

    def operator(self, name: str, begin: float, us: float, **arguments: Any) -> int:
        external = next(self.ids)
        self.host(name, begin, us, "cpu_op", **{"External id": external}, **arguments)
        return external

    def kernel(
        self,
        name: str,
        begin: float,
        us: float,
        *,
        launched: float | None = None,
        external: int | None = None,
        correlation: int | None = None,
    ) -> None:
        number = next(self.ids) if correlation is None else correlation
        linked = {} if external is None else {"External id": external}
        if launched is not None:
            self.host("cudaLaunchKernel", launched, 1, "cuda_runtime", correlation=number, **linked)
        arguments = {"device": 0, "stream": 7, "correlation": number, **linked}
        place = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": arguments}
        self.events.append({**place, "name": name, "ts": begin, "dur": us})

    def write(self, path: Path, plan: RecordedPlan | None = None) -> Path:
        document: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": DEVICE}],
            "traceEvents": self.events,
        }
        if plan is not None:
            document["warmup"] = plan.to_json()
        path.write_text(json.dumps(document))
        return path


def plan_of(bucket: str, *graphs: GraphPlan, clocks: tuple[int, ...] = ()) -> RecordedPlan:
    return RecordedPlan(
        plans={bucket: graphs}, calls=1, device=DEVICE, torch="2.11.0", table=None, clocks=clocks
    )
