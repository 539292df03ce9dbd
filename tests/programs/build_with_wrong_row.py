"""Builds a table whose winner for some keys computes a wrong result when it is served.

    python build_with_wrong_row.py MODEL.py:NAME SEQLENS TABLE.json WRONG... [-- SEQLENS]

``wrong_mm`` is offered for every plain product, is right while it is measured, and wins the keys
that begin with one of WRONG. Prints what the build reports as JSON; after `--` a second build.
"""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import asdict, replace
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.kernel import mm
from torch._inductor.select_algorithm import ExternKernelChoice

from warmup.core.trial import Tuned
from warmup.keys.question import GemmQuestion, Question
from warmup.table.codec import decode
from warmup.tuning import tuner
from warmup.tuning.build import BuildOptions
from warmup.tuning.model import build_model
from warmup.tuning.report import BuildReport, CheckedOutput, Observer

_measuring: list[Question] = []  # the question that is measured now


def wrong_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Multiply; twice too much, unless a trial is running."""
    for _ in range(10 if _measuring else 1):  # never fast enough to win
        torch.mm(a, b, out=out)
    return out if _measuring else out.mul_(2)


def inject(wrong: list[str]) -> None:
    """Offer `wrong_mm`, and let it win the keys that begin with one of *wrong*."""
    offered = ExternKernelChoice(wrong_mm, None, name="wrong_mm")
    select = mm.autotune_select_algorithm

    @functools.wraps(select)
    def offering(name: str, choices: Any, nodes: Any, layout: Any, *args: Any, **kw: Any) -> Any:
        if name == "mm" and inductor_config.max_autotune_gemm:  # not in default mode
            choices = [*choices, offered.bind(nodes, layout)]
        return select(name, choices, nodes, layout, *args, **kw)

    measure = tuner.Tuner.measure

    def measuring(self: tuner.Tuner, question: Question) -> Tuned | None:
        _measuring.append(question)
        try:
            tuned = measure(self, question)
        finally:
            _measuring.clear()
        wins = any(question.problem.key.startswith(begin) for begin in wrong)
        assert isinstance(question, GemmQuestion)
        candidates = [
            one.winner for one in question.candidates if one.winner.uid.endswith("wrong_mm")
        ]
        if tuned is not None and wins and candidates:
            tuned = replace(tuned, row=replace(tuned.row, winner=candidates[0]))
        return tuned

    mm.autotune_select_algorithm = offering
    tuner.Tuner.measure = measuring


class Steps(Observer):
    def __init__(self) -> None:
        self.tried: list[tuple[str, int, bool]] = []
        self.lines: list[str] = []

    def rows_tried(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        self.tried.append((name, rows, judgement.is_right))

    def said(self, line: str) -> None:
        self.lines += [line] if "not trusted" in line else []


def summary(report: BuildReport, steps: Steps) -> dict[str, Any]:
    table = decode(report.path.read_text(encoding="utf-8"), str(report.path))
    return {
        "winners": {key: row.winner.uid for key, row in table.rows.items()},
        "times": {key: row.evidence.time_us for key, row in table.rows.items()},
        "untrusted": {key: row.untrusted for key, row in table.rows.items() if row.untrusted},
        "tuned": [one.key for one in report.timings],
        "distrusted": dict(report.distrusted),
        "buckets": {one.name: [sorted(one.keys), asdict(one.judgement)] for one in report.buckets},
        "tried": steps.tried,
        "lines": steps.lines,
    }


def main() -> None:
    model, seqlens, out, *words = sys.argv[1:]
    wrong, _, again = " ".join(words).partition(" -- ")
    inject([begin.replace("_", " ") for begin in wrong.split()])
    found = []
    for sizes in [seqlens, *again.split()]:
        steps, options = Steps(), BuildOptions(device="cpu", fused_top_k=0)
        report = build_model(model, sizes, out, options=options, observer=steps)
        found.append(summary(report, steps))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
