"""Serves the plain script's model with another setting than its table's, then as advised.

    python follow_advice.py TABLE

Prints a JSON object: for each case the misses with the other setting, the advice, and the misses
after it was followed.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).with_name("models")))

from plain_script import Net

import warmup


def serve(**settings: Any) -> warmup.Report:
    """Serve one call, and return the report."""
    torch.compiler.reset()
    torch.manual_seed(0)
    casts = settings.pop("autocast", False)
    with warmup.install(sys.argv[1], freezing=True, quiet=True) as handle:
        autocast = torch.autocast("cpu", torch.bfloat16) if casts else contextlib.nullcontext()
        with torch.no_grad(), autocast:
            torch.compile(Net().eval(), dynamic=False)(torch.ones(8, 32))
        return handle.report()


def follow(case: str) -> dict[str, Any]:
    """Serve *case*, do what the advice says, and serve again."""
    if case == "precision":
        torch.set_float32_matmul_precision("medium")
    before = serve(autocast=case == "autocast")
    advised = " ".join(before.advised)
    if named := re.search(r'set_float32_matmul_precision\("([a-z]+)"\)', advised):
        torch.set_float32_matmul_precision(named[1])
    after = serve(autocast=case == "autocast" and "autocast" not in advised)
    return {
        "before": sum(before.misses.values()),
        "advised": before.advised,
        "after": sum(after.misses.values()),
        "hits": sum(after.hits.values()),
    }


if __name__ == "__main__":
    json.dump({case: follow(case) for case in ("precision", "autocast")}, sys.stdout)
