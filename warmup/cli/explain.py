"""`warmup explain`, `suggest` and `doctor`: ranges of sizes, buckets, and what a machine lacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from warmup.cli import options
from warmup.cli.output import (
    TEXT_WIDTH,
    complain,
    fold,
    print_report,
    record,
    say,
    terminal_width,
    times,
)
from warmup.cli.streams import EXIT_FOUND
from warmup.core.device import ASSUMED_DEVICES
from warmup.core.errors import SettingsError
from warmup.core.text import counted, sentence
from warmup.diagnostics.doctor import Diagnosis, diagnose
from warmup.diagnostics.explain import Explanation, Section, Span
from warmup.diagnostics.explain import explain as explain_model
from warmup.diagnostics.suggest import MAX_SUGGESTED, Cost, Suggestion
from warmup.diagnostics.suggest import suggest as choose_buckets
from warmup.diagnostics.torch_source import InternalState, TorchReport, read_torch

_LISTED: Final = 8  # sizes of a range that are listed; of more sizes their number is
_BAR_COLUMNS: Final = 46  # the bar of all work, beside three columns of numbers
_STATE_COLUMNS: Final = 5
_CHECK_COLUMNS: Final = 17
_INTERNAL_COLUMNS: Final = 11


def _refuse_program(words: list[str] | None) -> None:
    if words:
        script = next((word for word in words if word.endswith(".py")), "FILE.py")
        raise typer.BadParameter(
            f"a program is not run here: name the module that it compiles and the sizes that it "
            f"is called with, --model {script}:NAME --seqlens 560,1024"
        )


def explain(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", hidden=True, callback=_refuse_program),
    ] = None,
    *,
    model: options.ModelOptions,
    mode: Annotated[
        Literal["default", "max-autotune"], typer.Option(help="The torch.compile mode.")
    ] = "default",
    grad: Annotated[
        bool | None, typer.Option(help="With or without gradients; default both.")
    ] = None,
    assume: Annotated[
        str | None, typer.Option(help=f"A GPU that is not here: {', '.join(ASSUMED_DEVICES)}.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Name the sizes at which torch.compile recompiles, and why.

    Nothing is tuned, timed or built.
    """
    del command  # refused by its callback
    assert model.model is not None  # the option is required
    found = explain_model(model.model, **model.words(), mode=mode, grad=grad, assume=assume)
    for assumption in found.assumptions:
        say(assumption)
    print_report(found, _spell, as_json=as_json)


def _spell(found: Explanation) -> Iterator[str]:
    width = min(terminal_width() or TEXT_WIDTH, 2 * TEXT_WIDTH)
    assumed = ""
    if (gpu := found.assumed) is not None:
        rates = "/".join(f"{gpu.tflops[dtype]:g}" for dtype in ("bf16", "f32"))
        assumed = (
            f" (assumed: sm_{gpu.compute_capability}, {gpu.sm_count} SMs, {gpu.memory_gib} GiB, "
            f"{gpu.gbps:g} GB/s, {rates} TFLOP/s in bf16/f32, as published)"
        )
    head = f"{found.model} on {found.device}{assumed}, torch {found.torch}, mode {found.mode}"
    yield from fold(f"{head}; nothing was tuned, timed or built", width=width)
    for caveat in found.caveats:
        yield from fold(caveat, "note: ", indent=2, width=width)
    for section in found.sections:
        yield ""
        yield from _section(section, found.recompile_limit, width)


def _section(section: Section, recompile_limit: int, width: int) -> Iterator[str]:
    mode = "training" if section.grad else "inference"
    held = "".join(f", {name}={size}" for name, size in section.held)
    artifacts = counted(sum(len(graph.spans) for graph in section.graphs), "artifact")
    yield f"{section.dim}, {mode}{held}: {artifacts}; max-autotune tunes each on its own"
    tried = ", ".join(map(str, section.tried))
    yield from fold(f"sizes compiled, in this order: {tried}", "  ", width=width)
    if len(section.graphs) > 1:
        split = f"graph breaks split the model into {len(section.graphs)} graphs"
        yield from fold(f"{split}, each with ranges of its own", "  ", width=width)
    for graph in section.graphs:
        yield ""
        yield f"  graph {graph.number}: {graph.function} ({_where(graph.path)}:{graph.line})"
        for span in graph.spans:
            yield from _span(span, width)
        if len(graph.spans) > recompile_limit:
            limited = (
                f"dynamo compiles a function at most {recompile_limit} times (recompile_limit) "
                "and runs it uncompiled from then on"
            )
            yield from fold(limited, "  ! ", width=width)
    if section.uncovered is not None:
        stopped = (
            f"stopped after {len(section.tried)} sizes: the sizes "
            f"{section.uncovered} to {section.largest} have no artifact"
        )
        yield from fold(stopped, "  ! ", width=width)


def _span(span: Span, width: int) -> Iterator[str]:
    head = f"  {_range(span):<13} "
    yield from fold(f"compiled at {span.tuned_at}, {_served(span.sizes)}", head, width=width)
    low, high = span.low_cause, span.high_cause
    if low is high is None:
        yield from fold("no guard of torch tests this dim", " " * 11, width=width)
    ends = [(f"from {span.low}", low), (f"to {span.high}", high)]
    if low == high:
        ends = [(f"only {span.low}", low)]
    for end, cause in (*ends, *(("only where", condition) for condition in span.conditions)):
        if cause is not None:
            yield from fold(f"{end}, {cause.kind}: {cause.sentence}", "    ", indent=6, width=width)
            yield from fold(f"guard {cause.expression}", "      ", width=width)
            for place in (cause.place, cause.user):
                if place is not None:
                    yield f"      at {_where(place.path)}:{place.line} in {place.function}"
    if span.unexpected:
        doubt = (
            f"an earlier artifact's guards on this dim allow {span.tuned_at}; dynamo compiled "
            f"again for another reason: {span.unexpected}"
        )
        yield from fold(doubt, "    ! ", width=width)
    if span.unbound:
        doubt = f"symbolic sizes that do not follow from this dim: {', '.join(span.unbound)}"
        yield from fold(doubt, "    ! ", width=width)


def _served(sizes: Sequence[int]) -> str:
    if len(sizes) > _LISTED:
        return f"its winners serve {len(sizes)} given sizes from {min(sizes)} to {max(sizes)}"
    named = ", ".join(map(str, sizes))
    return f"its winners serve {named}" if sizes else "no given size uses its winners"


def _range(span: Span) -> str:
    """Return the sizes of a span in short: ``2..1280``, ``1281..``, ``64`` or ``any size``."""
    if span.high is None:
        return f"{span.low}.." if span.low else "any size"
    return f"{span.low}" if span.low == span.high else f"{span.low}..{span.high}"


def _where(path: str) -> str:
    if not Path(path).is_absolute():
        return path
    return min(path, os.path.relpath(path), key=len)


def suggest(
    *,
    histogram: Annotated[
        str,
        typer.Option(
            help="File with a line for each size: SIZE or SIZE,COUNT or JSON with both; - is stdin."
        ),
    ],
    max_buckets: Annotated[
        int, typer.Option(help=f"The most buckets to suggest, 1 to {MAX_SUGGESTED}.")
    ] = 8,
    multiple: Annotated[int, typer.Option(help="Round buckets up to multiples of this.")] = 1,
    cost: Annotated[Cost, typer.Option(help="Growth of the work with the size.")] = Cost.LINEAR,
    as_json: options.AsJson = False,
) -> None:
    """Choose buckets that add the least padding to observed sizes."""
    source = sys.stdin.buffer if histogram == "-" else histogram
    found = choose_buckets(source, max_buckets=max_buckets, multiple=multiple, cost=cost.value)
    curve = [{**record(pick), "padded": found.padded(pick)} for pick in found.curve]
    asked = {"multiple": multiple, "cost": cost}
    document = {**asked, **record(found), "curve": curve, "value": _value(found)}
    print_report(found, partial(_spell_curve, cost=cost), lambda _: document, as_json=as_json)


def _spell_curve(found: Suggestion, cost: Cost) -> Iterator[str]:
    yield f"--seqlens {_value(found)}"
    yield ""
    sizes = f"{found.observed} sizes from {found.smallest} to {found.largest}"
    yield f"{found.requests} requests, {sizes}; work {cost} in the size"
    buckets = counted(len(found.curve), "bucket")
    yield f"with {buckets} the padded work is {times(found.padded(found.best))} the unpadded work"
    yield ""
    yield "buckets  padded work  padding"
    for number, pick in enumerate(found.curve, start=1):
        share = 1 - found.work / pick.work
        bar = "#" * round(_BAR_COLUMNS * share)
        yield f"{number:>7}  {times(found.padded(pick)):>11}  {share:>7.1%}  {bar}".rstrip()


def _value(found: Suggestion) -> str:
    return ",".join(map(str, found.best.sizes))


def doctor(
    *,
    device: options.DeviceOption = "auto",
    torch: Annotated[
        Path | None,
        typer.Option(
            metavar="WHEEL_OR_FOLDER",
            help="Instead, read whether another torch has what warmup uses; nothing of it runs.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check this machine before a build or a server. Exit code 1 when a check fails."""
    if torch is not None:
        if device != "auto":
            raise SettingsError("--torch looks at no device", "leave --device out")
        report = read_torch(torch)
        print_report(
            report, _internals, lambda found: record(found, "counts", "broken"), as_json=as_json
        )
        failed = ["internals of that torch"] * bool(report.broken)
    else:
        diagnosis = diagnose(device)
        print_report(diagnosis, _findings, lambda found: record(found.findings), as_json=as_json)
        failed = [*diagnosis.failed]
    if failed:
        complain(f"doctor failed on: {', '.join(failed)}")
        raise typer.Exit(EXIT_FOUND)


def _internals(report: TorchReport) -> Iterator[str]:
    width = terminal_width() or TEXT_WIDTH
    left_out = {InternalState.SAME} | ({InternalState.BODY} if not options.is_verbose() else set())
    for each in (each for each in report.names if each.state not in left_out):
        name = each.name.partition("(")[0].replace(":", ": ")
        yield from fold(name, f"{each.state:{_INTERNAL_COLUMNS}}", width=width)
        said = sentence(each.said, ", ".join(each.files))
        yield from fold(said, " " * _INTERNAL_COLUMNS, width=width)
    note = "" if report.supported else " (not supported; read as the newest that is)"
    against = f", compared with torch {report.here} here" if report.here else ""
    counts = ", ".join(f"{count} {state}" for state, count in report.counts.items() if count)
    total = counted(len(report.names), "name")
    yield from fold(f"{total} of torch {report.torch}{note}{against}: {counts}", width=width)


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    width, indent = terminal_width(), " " * (_STATE_COLUMNS + _CHECK_COLUMNS)
    for finding in diagnosis.findings:
        head = f"{finding.state:{_STATE_COLUMNS}}{finding.name:{_CHECK_COLUMNS}}"
        yield from fold(finding.said, head, width=width)
        if finding.fix:
            yield from fold(f"fix: {finding.fix}", indent, indent=len(indent) + 5, width=width)
