"""Serves the plain script's model with another setting than its table's, then as advised.

    python follow_advice.py TABLE

Prints a JSON object: for each case the misses with the other setting, the advice, and the misses
after it was followed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).with_name("models")))

from plain_script import Net

import warmup


def serve(*, autocast: bool = False, dynamic: bool = False) -> warmup.Report:
    torch.compiler.reset()
    torch.manual_seed(0)
    with warmup.install(sys.argv[1], freezing=True) as handle:
        cast = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
        x = torch.ones(8, 32)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad(), cast:
            torch.compile(Net().eval(), dynamic=dynamic)(x)
        return handle.report()


def result(before: warmup.Report, follow: Callable[[str], Any] = str) -> dict[str, Any]:
    """Return what is printed of a case, whose advice *follow* follows."""
    advised = " ".join(before.advised)
    follow(advised)
    after = serve()
    counts = {"before": sum(before.misses.values()), "after": sum(after.misses.values())}
    return {**counts, "advised": advised, "hits": sum(after.hits.values())}


def named(pattern: str, advised: str) -> str:
    found = re.search(pattern, advised)
    assert found is not None, advised
    return found[1]


def main() -> None:
    os.environ["WARMUP_ALLOW_MISMATCH"] = "1"
    cases = {"autocast": result(serve(autocast=True)), "dynamic": result(serve(dynamic=True))}
    torch.set_float32_matmul_precision("medium")
    precision = r'set_float32_matmul_precision\("([a-z]+)"\)'
    cases["precision"] = result(
        serve(), lambda said: torch.set_float32_matmul_precision(named(precision, said))
    )
    torch.set_num_threads(torch.get_num_threads() + 1)
    threads = r"torch\.set_num_threads\((\d+)\)"
    cases["threads"] = result(
        serve(), lambda said: torch.set_num_threads(int(named(threads, said)))
    )
    json.dump(cases, sys.stdout)


if __name__ == "__main__":
    main()
