"""The smallest row kind, and a program that takes it through everything warmup does with rows.

The decision: on a CPU inductor computes ``torch.cat`` with one kernel for each part, and could use
a single pointwise kernel (``cat`` in torch/_inductor/lowering.py says so itself). A key:

    toy cat m=8 widths=32,32 f32

Row kinds of the package have their words in ``warmup/keys/`` and their hooks in
``warmup/inductor/``; here both stand in one file. ``KINDS["toy"] = TOY`` in `main` is the line in
the registry.

The program works in the current folder and prints what it saw as JSON after ``RESULT``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import ir, lowering, metrics

import warmup
from warmup.cli import main as run_command
from warmup.core.buckets import Bucket
from warmup.core.errors import MissReason, ProblemError, warmup_error_in
from warmup.core.events import Hit, Missed
from warmup.core.rows import Family, Winner
from warmup.inductor.caches import empty_caches
from warmup.inductor.patches import KindHooks, Patches
from warmup.keys.kind import Kind, Problem
from warmup.keys.question import CallsQuestion
from warmup.keys.registry import KINDS
from warmup.models.model_target import LoadedModel
from warmup.models.rebuilt import RebuiltProblem
from warmup.table.codec import digest_of
from warmup.table.schema import Table
from warmup.table.store import read

# -- words: what a key says ----------------------------------------------------------------------

PARTS = Winner(Family.SUBGRAPH, "kernel_for_each_part")
POINTWISE = Winner(Family.SUBGRAPH, "one_pointwise_kernel")
TOY = Kind(
    name="toy",
    pattern=re.compile(r"toy cat m=[0-9]+ widths=[0-9]+(?:,[0-9]+)+ [a-z0-9]+"),
    words=("kind", "op", "dtype"),
    fixed=2,
    families=frozenset({Family.SUBGRAPH}),
    nearest_by=("m",),
    hooks=f"{__name__}:ToyChoices",
    rebuild=f"{__name__}:rebuild_toy",
)


# -- hooks: asking while inductor compiles ---------------------------------------------------------


class ToyChoices(KindHooks):
    """Answers how to concatenate while its patches are in place."""

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.wrap(ir.ConcatKernel, "create", self._wrap)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create(cls: type, inputs: Sequence[Any], dim: int) -> Any:
            if self._active and self._choose(inputs, dim) == POINTWISE:
                return lowering.pointwise_cat(inputs, dim).data
            return original(cls, inputs, dim)

        return create

    def _choose(self, inputs: Sequence[Any], dim: int) -> Winner:
        """Return the winner that is compiled, and tell *answers* where it comes from."""
        try:
            problem = describe(inputs, dim)
        except ProblemError as error:
            self._answers.emit(Missed(f"toy ({error})", MissReason.NOT_DESCRIBED, str(PARTS)))
            return PARTS
        answer = self._answers.find(problem)
        if isinstance(answer, Winner):
            self._answers.emit(Hit(problem.key, str(answer)))
            return answer
        if self._settings.measures:
            question = CallsQuestion(problem, PARTS, calls_of(problem.m, problem.widths))
            return self._answers.measure(question) or PARTS
        self._answers.emit(Missed(problem.key, answer, str(PARTS)))
        return PARTS


@dataclass(frozen=True)
class ToyProblem(Problem):
    """Matrices of ``m`` rows and some ``widths``, to be concatenated along the columns."""

    kind = TOY

    m: int
    widths: tuple[int, ...]

    def _spell(self) -> str:
        return f"toy cat m={self.m} widths={','.join(map(str, self.widths))} f32"


def describe(inputs: Sequence[Any], dim: int) -> ToyProblem:
    """Return the problem to concatenate *inputs*, nodes of inductor's IR, along *dim*.

    Raises:
        ProblemError: it is not about the columns of float32 matrices with static sizes.
    """
    if dim != 1 or any(part.get_dtype() is not torch.float32 for part in inputs):
        raise ProblemError("not columns of float32")
    try:
        sizes = [tuple(map(int, part.get_size())) for part in inputs]
    except TypeError as error:  # a symbol
        raise ProblemError("a dynamic size") from error
    return ToyProblem(sizes[0][0], tuple(size[1] for size in sizes))


def calls_of(m: int, widths: Sequence[int]) -> Mapping[Winner, Callable[[int], object]]:
    """Return calls that a build times: in eager mode, as many kernels as compiled."""
    parts = [torch.ones(m, width) for width in widths]
    out = torch.empty(m, sum(widths))
    slices = out.split(widths, 1)

    def copy_each(_number: int) -> None:
        for part, place in zip(parts, slices, strict=True):
            place.copy_(part)

    return {PARTS: copy_each, POINTWISE: lambda _number: torch.cat(parts, 1, out=out)}


def sizes_of(key: str) -> tuple[int, list[int]]:
    named = TOY.ingredients(key)
    return int(named["m"]), [int(width) for width in named["widths"].split(",")]


# -- rebuilding: a module that asks for a key, made without the user's model -----------------------


class Joined(nn.Module):
    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        return torch.cat(parts, 1)


def rebuild_toy(key: str, device: torch.device) -> RebuiltProblem:
    m, widths = sizes_of(key)

    def make_inputs(**_sizes: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(m, width, device=device) for width in widths)

    model = LoadedModel(Joined().eval(), make_inputs, "toy")
    bucket = Bucket((("m", m),))
    return RebuiltProblem(model=model, bucket=bucket, settings=contextlib.nullcontext, dtype="f32")


# -- the user's model ------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.relu(x)], self.dim) * 2


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 32)


# -- the program -----------------------------------------------------------------------------------


def main() -> None:
    KINDS["toy"] = TOY
    sys.stdout.write(f"RESULT {json.dumps(dict(steps()))}\n")


def steps() -> Iterator[tuple[str, Any]]:
    report = warmup.build(
        f"{__file__}:Net", "8", "8.json", options=warmup.BuildOptions(device="cpu")
    )
    yield "built", [str(tuned.row.winner) for tuned in report.timings]
    (key,) = report.table.rows
    yield "key", key
    yield "stored", json.loads(Path("8.json").read_text())["rows"]
    yield "digests", [report.digest, digest_of(read("8.json"))]
    yield "shown", run("show", "8.json")
    yield "filtered", {m: run("show", "8.json", "--rows", f"cat m={m}") for m in ("8", "9")}
    yield "checked", run("check", "8.json", "--device", "cpu")
    with empty_caches():
        yield "hit", serve("8.json", 8, "strict", "hit.jsonl")
        yield "hit event", event_of("hit.jsonl", "lookup.hit")
        yield "from cache", serve("8.json", 8, "strict")
    row, kernels = report.table.rows[key], {}
    for winner in (PARTS, POINTWISE):
        table = replace(report.table, rows={key: replace(row, winner=winner)})
        with empty_caches():
            kernels[str(winner)] = serve(table, 8, "strict")["kernels"]
    yield "kernels by winner", kernels
    with empty_caches():
        yield "missed", serve("8.json", 16, "fallback", "missed.jsonl")
        yield "miss event", event_of("missed.jsonl", "lookup.missed")
        yield "refused from cache", serve("8.json", 16, "strict")
        serve("8.json", 8, "fallback", "below.jsonl", dim=0)
        yield "event without a key", event_of("below.jsonl", "lookup.missed")
    with empty_caches():
        yield "refused", serve("8.json", 16, "strict")
    yield "audited", run("audit", "hit.jsonl", "missed.jsonl", "--json")
    yield "unused", run("audit", "missed.jsonl", "--misses-out", "misses.json")
    yield "misses", json.loads(Path("misses.json").read_text())["problems"]
    words = ("--device", "cpu", "--out", "16.json")
    yield "rebuilt", run("build", "--problems", "misses.json", *words)
    yield "rebuilt rows", json.loads(Path("16.json").read_text())["rows"]
    yield "merged", run("merge", "8.json", "16.json", "--out", "both.json")
    yield "merged rows", list(read("both.json").rows)
    with empty_caches():
        yield "served both", [serve("both.json", m, "strict") for m in (8, 16)]


def run(*words: str) -> dict[str, Any]:
    """Run ``warmup`` with *words* in this process; return its exit code and what it printed."""
    printed = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(printed):
        try:
            run_command([*words])
        except SystemExit as ended:
            code = ended.code or 0
    return {"code": code, "printed": printed.getvalue()}


def serve(
    table: str | Table, m: int, on_miss: str, log: str | None = None, dim: int = 1
) -> dict[str, Any]:
    """Compile and call the user's model for *m* rows from *table*; return what happened."""
    torch._dynamo.reset()
    metrics.reset()
    model, given = Net(dim).eval(), example_inputs(m)
    found: dict[str, Any] = {}
    with warmup.install(table, on_miss=on_miss, audit_log=log) as handle, torch.no_grad():
        try:
            torch.testing.assert_close(torch.compile(model)(given), model(given))
        except Exception as error:  # noqa: BLE001  reported below
            found["error"] = str(warmup_error_in(error) or error)
    report = handle.report()
    return found | {
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "unused": list(report.unused),
        "cached": report.cached_decisions,
        "kernels": metrics.generated_kernel_count,
    }


def event_of(log: str, name: str) -> dict[str, Any]:
    events = map(json.loads, Path(log).read_text().splitlines())
    (found,) = [event for event in events if event["event"] == name]
    return found


if __name__ == "__main__":
    main()
