"""Write a table of one range, prime it by the command, and serve from inductor's caches.

    python prime_ranges.py MODEL.py:NAME TABLE.json

The model is the one in batched.py. Prints as JSON what the command printed, what the server's
reports say, and what an audit of its log prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import warmup
from warmup.cli import main as command
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.models.loading import load_model
from warmup.table.schema import PolicyOptions, Provenance, Table
from warmup.table.store import write
from warmup.tuning.build import find_setup

KEY = "bmm batch=4 m=2..16 n=48 k=32 f32 a=row b=row out=f32 fp32=ieee | epilogue=relu"


def said_by(*words: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            command([*words])
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue()
    raise AssertionError(words)


def make_table() -> Table:
    """Return a table for this machine with the library's kernel from 2 to 16 rows."""
    setup = find_setup("cpu", PolicyOptions())
    seen = Evidence(time_us=1.0, library_us=1.0, runner_up=None, runner_up_us=None, tried=1)
    row = Row(Winner(Family.EXTERN, "aten::bmm"), seen)
    origin = Provenance(setup.runtime, warmup.__version__, "2026-01-02T03:04:05Z")
    return Table(origin, setup.policy, {KEY: row})


def main() -> None:
    spelled, path = sys.argv[1:]
    write(Path(path), make_table())
    shared = ("--device", "cpu", "--model", spelled, "--seqlens", "16", "--policy", "range")
    code, primed = said_by("check", path, "--prime", *shared, "--json")
    loaded = load_model(spelled)
    assert loaded.example_inputs is not None
    torch.compiler.reset()
    os.environ["WARMUP_AUDIT_LOG"] = "log.jsonl"
    served = warmup.compile(
        loaded.module, dims={"a": {1: "rows"}}, buckets="16", table=path, on_miss="strict"
    )
    errors = []
    for n in (5, 1, 16, 17, 20, 17, 17, 17):
        given: Any = loaded.example_inputs(n)
        with torch.no_grad():
            errors.append((served(*given) - loaded.module(*given)).abs().max().item())
    assert served.handle is not None
    report = served.handle.report()
    served.close()
    with torch.no_grad():
        for _ in range(3):  # the eighth call would be told, but nobody listens
            served(*loaded.example_inputs(17))
    said = {
        "code": code,
        "primed": json.loads(primed),
        "from_cache": report.from_cache,
        "cached_decisions": report.cached_decisions,
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "error": max(errors),
        "outside": dict(served.report().outside),
        "audit": said_by("audit", "log.jsonl")[1].splitlines(),
        "failed": said_by("audit", "log.jsonl", "--fail-on", "outside")[0],
        "passed": said_by("audit", "log.jsonl", "--fail-on", "miss,silent")[0],
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
