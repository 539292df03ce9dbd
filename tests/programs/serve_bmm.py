"""Serve a batched product from a table; its graphs are cacheable, since nothing is frozen.

    python serve_bmm.py TABLE

Prints the report as JSON. The caches are those of TORCHINDUCTOR_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys

import torch

import warmup


def main() -> None:
    a, b = torch.randn(4, 64, 32), torch.randn(4, 32, 48)
    with warmup.install(sys.argv[1]) as handle, torch.no_grad():
        compiled = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)), mode="max-autotune")
        torch.testing.assert_close(compiled(a, b), torch.relu(torch.bmm(a, b)))
        report = handle.report()
    out = {
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "from_cache": report.from_cache,
        "cached_decisions": report.cached_decisions,
        "silent": report.is_silent,
        "uncovered": dict(report.uncovered),
    }
    sys.stdout.write("RESULT " + json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
