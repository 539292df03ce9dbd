"""Record one batched product and write two tables that differ in its winner.

python build_bmm.py LIBRARY.json TEMPLATE.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from warmup.core.events import Emitter
from warmup.core.rows import L2, Evidence, Family, Method, Row
from warmup.core.trial import Tuned
from warmup.inductor import connect
from warmup.inductor.caches import empty_caches
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss, Policy, Provenance, Table
from warmup.table.store import write
from warmup.tuning.tuner import make_tuner


def main() -> None:
    recorded: list[Tuned] = []
    inductor = connect()
    options = {**inductor.quiet_switches(), "max_autotune_gemm_backends": "ATEN,CPP"}
    timing = Method(l2=L2.WARM)
    policy = Policy(mode="max-autotune", options=options, timing=timing, seed=0, tolerance={})
    tuner = make_tuner(policy, torch.device("cpu"))
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]), tuner=tuner, on_tuned=recorded.append)
    attachment = inductor.attach(lookup, options, "test", quiet=True)
    with empty_caches(), torch.no_grad():
        compiled = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)), mode="max-autotune")
        compiled(torch.randn(4, 64, 32), torch.randn(4, 32, 48))
    attachment.detach()
    (problem,) = recorded
    provenance = Provenance(inductor.runtime("cpu"), "test", "2026-01-01T00:00:00Z")
    evidence = Evidence(time_us=1.0, library_us=1.0, runner_up=None, runner_up_us=None, tried=2)
    for family, path in ((Family.EXTERN, sys.argv[1]), (Family.CPP, sys.argv[2])):
        winner = next(t.winner for t in problem.timings if t.winner.family is family)
        rows = {problem.key: Row(winner, evidence)}
        write(Path(path), Table(provenance, policy, rows))


if __name__ == "__main__":
    main()
