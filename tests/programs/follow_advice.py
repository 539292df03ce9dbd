"""Serves the plain script's model with another setting than its table's, then as advised.

    python follow_advice.py TABLE
    python follow_advice.py TABLE ON_MISS

Prints a JSON object: for each case the misses with the other setting, the advice, and the misses
after it was followed. With ON_MISS, the cases that a build of this program ends are served, and the
object has their hits and misses.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).with_name("models")))

from plain_script import Net

import warmup
from warmup.table.schema import Table
from warmup.table.store import read

TABLE, *ON_MISS = sys.argv[1:]
OTHER = {"autocast": {"autocast": True}, "rows": {"rows": 16}}  # besides the precision


def serve(
    table: Any = TABLE,
    *,
    rows: int = 8,
    autocast: bool = False,
    grad: bool = False,
    dynamic: bool = False,
    mismatch: bool = False,
    **how: Any,
) -> warmup.Report:
    """Serve one call, and return the report."""
    torch.compiler.reset()
    torch.manual_seed(0)
    os.environ["WARMUP_ALLOW_MISMATCH"] = str(int(mismatch))
    with warmup.install(table, freezing=True, **how) as handle:
        cast = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
        x = torch.ones(rows, 32)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        with torch.set_grad_enabled(grad), cast:
            torch.compile(Net().eval(), dynamic=dynamic)(x)
        return handle.report()


def result(before: warmup.Report, after: warmup.Report, advised: str = "") -> dict[str, Any]:
    """Return what is printed of a case."""
    return {
        "before": sum(before.misses.values()),
        "advised": advised or " ".join(before.advised),
        "after": sum(after.misses.values()),
        "hits": (sum(before.hits.values()), sum(after.hits.values())),
    }


def precision() -> dict[str, Any]:
    """Serve with another precision, and then with the precision that the advice names."""
    torch.set_float32_matmul_precision("medium")
    before = serve()
    named = re.search(r'set_float32_matmul_precision\("([a-z]+)"\)', " ".join(before.advised))
    assert named is not None, before.advised
    torch.set_float32_matmul_precision(named[1])
    return result(before, serve())


def threads() -> dict[str, Any]:
    """Serve with another number of threads, and then with the number that the advice names."""
    torch.set_num_threads(torch.get_num_threads() + 1)
    before = serve(mismatch=True)
    named = re.search(r"torch\.set_num_threads\((\d+)\)", " ".join(before.advised))
    assert named is not None, before.advised
    torch.set_num_threads(int(named[1]))
    return result(before, serve())


def gradients() -> dict[str, Any]:
    """Serve with gradients on, and then under no_grad, as the notice says."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        before = serve(grad=True)
    return result(before, serve(), said.getvalue())


def of_another(**origin: Any) -> dict[str, Any]:
    """Serve a table of another *origin*, and then the one that was built on this device."""
    table = read(Path(TABLE))
    runtime = table.provenance.runtime
    device = replace(runtime.device, **origin.pop("device", {}))
    provenance = replace(table.provenance, runtime=replace(runtime, device=device, **origin))
    before = serve(Table(provenance, table.policy, table.rows), mismatch=True)
    return result(before, serve())


def main() -> None:
    """Do what the arguments say."""
    if ON_MISS:
        found = {name: serve(on_miss=ON_MISS[0], **how) for name, how in OTHER.items()}
        torch.set_float32_matmul_precision("medium")
        found["precision"] = serve(on_miss=ON_MISS[0])
        counts = {name: [sum(one.hits.values()), *one.misses] for name, one in found.items()}
        json.dump(counts, sys.stdout)
        return
    cases = {
        "precision": precision(),
        "autocast": result(serve(autocast=True), serve()),
        "dynamic": result(serve(dynamic=True), serve()),
        "gradients": gradients(),
        "threads": threads(),
        "device": of_another(device={"arch": "AMX"}),
        "runtime": of_another(torch="2.0.0"),
    }
    json.dump(cases, sys.stdout)


if __name__ == "__main__":
    main()
