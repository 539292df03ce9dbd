"""Plan the kernels of graphs that are lowered for the stated H100, fused or not as rows say.

    echo '{"case": "mlp", "fused": [true, null]}' | python cuda_plans.py

Cases are those of cuda_fusion.py. The result has the plan of the graph beside what that program
says: the keys of its rows, and the lines of the generated code that launch kernels.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import cuda_fusion

from warmup.core.roofline import PlannedKernel
from warmup.inductor.kernel_plans import PlanWatch
from warmup.inductor.patches import Patches


class KeptPlans(PlanWatch):
    """Keeps the plan of the last graph, which is generated and not loaded here."""

    last: tuple[PlannedKernel, ...] = ()

    def _note_launches(self, generated: Any, scheduler: Any) -> None:
        from torch._inductor.virtualized import V

        super()._note_launches(generated, scheduler)
        self.last = tuple(self.planned_in(V.graph))


def main() -> None:
    watch, patches = KeptPlans(), Patches()
    watch.attach(patches)
    for line in sys.stdin:
        found = cuda_fusion.run(json.loads(line))
        plan = [asdict(kernel) for kernel in watch.last]
        print(json.dumps({**found, "plan": plan}), flush=True)  # noqa: T201  the answer


if __name__ == "__main__":
    main()
