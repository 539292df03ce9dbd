"""Build a table of ranges, and serve every interval of it strictly by `warmup.compile`.

    python serve_ranges.py MODEL.py:NAME TABLE.json [DEVICE]

Prints as JSON the keys of the table, how the buckets went, what rows and timings say of the sizes
of their range, and what the report of the table says.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import warmup
from warmup.models.loading import load_model


def main() -> None:
    spelled, path, *others = sys.argv[1:]
    device = others[0] if others else "cpu"
    built = warmup.build(
        spelled, "16", path, options=warmup.BuildOptions(device=device, policy="range")
    )
    loaded = load_model(spelled)
    loaded.module.to(device)
    torch.compiler.reset()
    served = warmup.compile(
        loaded.module,
        dims={"hidden_states": {0: "seqlen"}},
        buckets="16",
        table=path,
        on_miss="strict",
        freezing=True,
    )
    errors = []
    assert loaded.example_inputs is not None
    for n in (3, 1, 16, 2, 9):
        x: Any = loaded.example_inputs(n).to(device)
        with torch.no_grad():
            errors.append((served(x) - loaded.module(x)).abs().max().item())
    assert served.handle is not None
    found = served.handle.report()
    said = {
        "keys": sorted(built.table.rows),
        "along": {key: row.evidence.along for key, row in built.table.rows.items()},
        "timed": {
            tuned.key: {str(one.winner): one.along_us for one in tuned.timings}
            for tuned in built.timings
        },
        "winners": {key: str(row.winner) for key, row in built.table.rows.items()},
        "buckets": [[result.name, result.tuned, result.error] for result in built.buckets],
        "hits": sorted(found.hits),
        "misses": dict(found.misses),
        "uncovered": dict(found.uncovered),
        "error": max(errors),
        "artifacts": dict(served.report().artifacts),
    }
    served.close()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
