"""Build a table while no plain product can be measured, then all, then by force without them.

    python build_giving_up.py MODEL.py:NAME SEQLENS TABLE.json KEY

Another library call is offered for every plain product, so that inductor has a choice to make. The
second build is of the problem KEY alone, which cannot be measured either. Prints what each build
says as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from two_candidates import offer

import warmup
from warmup.core.trial import Trial
from warmup.measuring.trial_process import TrialNotRunError
from warmup.tuning import tuner
from warmup.tuning.build import BuildRequest, ThisProcess
from warmup.tuning.build import build as build_problems
from warmup.tuning.problems import ProblemsSource
from warmup.tuning.report import BuildReport

SAID = "for want of memory"


@contextlib.contextmanager
def failing(begins: str) -> Iterator[None]:
    run = tuner.run_trial

    def run_trial(trial: Trial, *given: Any) -> Any:
        if trial.key.startswith(begins):
            raise TrialNotRunError(SAID)
        return run(trial, *given)

    with mock.patch.object(tuner, "run_trial", run_trial):
        yield


def told(report: BuildReport) -> dict[str, Any]:
    return {
        "rows": {key: row.evidence.time_us for key, row in report.table.rows.items()},
        "tuned": sorted(one.key for one in report.timings),
        "not_tuned": dict(report.not_tuned),
        "not_rebuilt": dict(report.not_rebuilt),
        "asked": [sorted(bucket.keys) for bucket in report.buckets],
    }


def main() -> None:
    offer()
    model, seqlens, table, key = sys.argv[1:]
    options = warmup.BuildOptions(device="cpu", fused_top_k=0)
    build = partial(warmup.build, model, seqlens, options=options)
    found = {}
    with failing("mm "):
        found["first"] = told(build(out=table))
    problem = {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1}
    document = {"schema": 1, "digests": [], "problems": [problem]}
    Path("problems.json").write_text(json.dumps(document), encoding="utf-8")
    request = BuildRequest(
        source=ProblemsSource(Path("problems.json")),
        runner=ThisProcess(),
        out=Path(table),
        options=options,
    )
    with failing(key):
        found["alone"] = told(build_problems(request))
    found["then"] = told(build(out=table))
    with failing("mm "):
        found["forced"] = told(build(out=table, options=replace(options, force=True)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
