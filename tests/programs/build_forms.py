"""Build tables of repeated layers in each form, serve them in each form, and print what came of it.

    python build_forms.py FOLDER

Tables here freeze no weights, as those of a GPU. Inductor then has one candidate for a linear on a
CPU, so another library call is offered. At a layer's border the whole graph has the activation of
the next layer as the product's epilogue, and a layer alone does not.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from two_candidates import offer

import warmup
from warmup.core.layers_form import LayersForm
from warmup.diagnostics.audit import audit
from warmup.diagnostics.misses import encode_misses
from warmup.table import Table
from warmup.table.built_forms import BuiltForms
from warmup.table.policy import choose_policy
from warmup.table.store import write
from warmup.tuning import setup
from warmup.tuning.from_misses import build_problems
from warmup.tuning.report import Observer

WIDTH, SIZE = 32, 16
MODEL = f"{Path(__file__)}:Stack"
SINGLE = f"{Path(__file__)}:Single"
BUCKET = f"{Path(__file__).stem}.Stack seqlen={SIZE}"
QUIET: dict[str, Any] = {"device": "cpu", "wait_for_quiet": 0, "fused_top_k": 0}


def choose(*args: Any, **kw: Any) -> Any:
    """Return the policy of a build, which freezes no weights."""
    policy = choose_policy(*args, **kw)
    return dataclasses.replace(policy, options={**policy.options, "freezing": False})


class Layer(nn.Module):
    """An activation, then a product."""

    def __init__(self) -> None:
        super().__init__()
        self.activation, self.product = nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.product(self.activation(x))
        return changed


class Stack(nn.Module):
    """Equal layers, one after the other, and their activation."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.relu()


class Single(Stack):
    """A model in which nothing repeats."""

    def __init__(self) -> None:
        super().__init__(1)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, WIDTH)


class Said(logging.Handler):
    """Keeps the lines that warmup logs about layers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("layers"):
            self.lines.append(record.getMessage())


said = Said()


class Watch(Observer):
    """Keeps what a build says of forms that it leaves out."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def form_refused(self, line: str) -> None:
        self.lines.append(line)


def built(report: warmup.BuildReport) -> dict[str, Any]:
    """Return the keys of each bucket by form, and what the table says about forms."""
    return {
        "keys": [[str(each.layers), list(each.keys)] for each in report.buckets],
        "tuned": len(report.timings),
        "forms": forms(report.table),
        "recalled": report.is_recalled,
    }


def forms(table: Table) -> dict[str, list[str]]:
    return {name: [*map(str, own)] for name, own in table.provenance.forms.by_bucket.items()}


def part(table: Table, keys: list[str], own: BuiltForms, path: Path) -> Path:
    """Write the rows of *keys* of *table*, built in the forms *own*, to *path*."""
    origin = dataclasses.replace(table.provenance, forms=own)
    rows = {key: table.rows[key] for key in keys}
    write(path, dataclasses.replace(table, provenance=origin, rows=rows))
    return path


def serve(path: Path, layers: str, *, policy: str = "exact", strict: bool = True) -> dict[str, Any]:
    """Serve a bucket from the table at *path*; the counts, the error, and what was said."""
    torch._dynamo.reset()
    said.lines.clear()
    model = Stack().eval()
    x = torch.randn(SIZE, WIDTH)
    served = warmup.compile(
        model,
        dims={"x": {0: "seqlen"}},
        buckets={"seqlen": (SIZE,)},
        policy=policy,
        layers=layers,
        table=path,
        on_miss="strict" if strict else "fallback",
    )
    with torch.no_grad():
        error = float((served(x) - model(x)).norm() / model(x).norm())
    assert served.handle is not None
    report, layers_report = served.handle.report(), served.report().layers
    served.close()
    return {
        "error": error,
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "reasons": dict(report.miss_reasons),
        "uncovered": dict(report.uncovered),
        "shared": 0 if layers_report is None else layers_report.shared,
        "said": list(said.lines),
    }


def close_the_loop(folder: Path, path: Path) -> dict[str, Any]:
    """Serve layers once from a table of whole graphs, build what was missed, and serve again."""
    log, misses = folder / "audit.jsonl", folder / "misses.json"
    os.environ["WARMUP_AUDIT_LOG"] = str(log)
    missed = serve(path, "once", strict=False)
    del os.environ["WARMUP_AUDIT_LOG"]
    report = audit([log])
    misses.write_text(encode_misses(report), encoding="utf-8")
    completed = build_problems(misses, out=path, **QUIET)
    return {
        "missed": missed,
        "advice": list(report.advice),
        "misses": json.loads(misses.read_text(encoding="utf-8"))["problems"],
        "forms": forms(completed.table),
        "served": serve(path, "once"),
    }


def build_range(path: Path) -> dict[str, Any]:
    """Build and serve layers compiled once for ranges."""
    report = warmup.build(
        MODEL, layers="once", policy="range", seqlens=str(SIZE), out=path, **QUIET
    )
    return {"build": built(report), "served": serve(path, "once", policy="range")}


def build_single(folder: Path) -> dict[str, Any]:
    """Build the model in which nothing repeats."""
    options: dict[str, Any] = {"seqlens": str(SIZE), **QUIET}
    refused = folder / "refused.json"
    try:
        warmup.build(SINGLE, layers="once", out=refused, **options)
    except warmup.WarmupError as error:
        reason = f"{type(error).__name__}: {error}"
    watch = Watch()
    report = warmup.build(
        SINGLE, layers="auto", out=folder / "single.json", observer=watch, **options
    )
    return {
        "refused": reason,
        "is_written": refused.exists(),
        "auto": built(report),
        "said": watch.lines,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    setup.choose_policy = choose  # type: ignore[attr-defined]
    logging.getLogger("warmup").addHandler(said)
    both = folder / "both.json"
    offer()
    options: dict[str, Any] = {"seqlens": str(SIZE), "out": both, **QUIET}
    report = warmup.build(MODEL, layers="auto", **options)
    plan = warmup.build(MODEL, layers="auto", **options, dry_run=True)
    by_form = {str(each.layers): list(each.keys) for each in report.buckets}
    once = BuiltForms({BUCKET: (LayersForm.ONCE,), f"{BUCKET}0": (LayersForm.WHOLE,)})
    of_once = part(report.table, by_form["once"], once, folder / "once.json")
    of_whole = part(report.table, by_form["whole"], BuiltForms(), folder / "whole.json")
    found = {
        "build": built(report),
        "plan": [[str(each.layers), list(each.known)] for each in plan.plan.buckets],
        "once": serve(of_once, "once"),
        "whole from once": serve(of_once, "whole", strict=False),
        "whole": serve(both, "whole"),
        "range": build_range(folder / "range.json"),
        "single": build_single(folder),
        "loop": close_the_loop(folder, of_whole),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
