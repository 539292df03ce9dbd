"""Serve a batched product from a table; its graphs are cacheable, since nothing is frozen.

    python serve_bmm.py TABLE [fallback|strict]

Prints the report as JSON, or the error. The caches are those of TORCHINDUCTOR_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import warmup
from warmup.core.errors import warmup_error_in


def main() -> None:
    a, b = torch.randn(4, 64, 32), torch.randn(4, 32, 48)
    on_miss = sys.argv[2] if len(sys.argv) > 2 else "fallback"
    out: dict[str, Any] = {}
    with warmup.install(sys.argv[1], on_miss=on_miss) as handle, torch.no_grad():
        compiled = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)), mode="max-autotune")
        try:
            torch.testing.assert_close(compiled(a, b), torch.relu(torch.bmm(a, b)))
        except Exception as error:  # noqa: BLE001  reported below
            out["error"] = str(warmup_error_in(error) or error)
        report = handle.report()
    out |= {
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "from_cache": report.from_cache,
        "cached_decisions": report.cached_decisions,
        "cached_misses": report.cached_misses,
        "silent": report.is_silent,
        "uncovered": dict(report.uncovered),
    }
    sys.stdout.write("RESULT " + json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
