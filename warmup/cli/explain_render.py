"""The report of `warmup explain` as text, with a picture of the ranges, and as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.cli.output import TEXT_WIDTH, fold, terminal_width
from warmup.core.assumed_device import AssumedDevice
from warmup.core.counted import counted
from warmup.diagnostics.explain import Explanation, Graph, Section
from warmup.diagnostics.ranges import Cause, Span

_NAMED: Final = 16  # columns of the picture that name a range
_LISTED: Final = 8  # sizes of a range that are listed; of more sizes their number is


def spell(found: Explanation, width: int | None = None) -> Iterator[str]:
    """Yield each section: the ranges as a picture, then each range with its ends.

    Lines are at most *width* columns wide where words allow; without it, as wide as the terminal.
    """
    width = width or min(terminal_width() or TEXT_WIDTH, 2 * TEXT_WIDTH)
    assumed = "" if found.assumed is None else f" (assumed: {facts_of(found.assumed)})"
    head = f"{found.model} on {found.device}{assumed}, torch {found.torch}, mode {found.mode}"
    yield from fold(f"{head}; nothing was tuned, timed or built", width=width)
    for caveat in found.caveats:
        yield from fold(caveat, "note: ", indent=2, width=width)
    for section in found.sections:
        yield ""
        yield from _section(section, found, width)


def document(found: Explanation) -> dict[str, Any]:
    """Return *found* as JSON values; docs/reference/cli.md#explain has each."""
    return asdict(found)


def facts_of(device: AssumedDevice) -> str:
    """Return the facts that are stated of *device*."""
    rates = "/".join(f"{rate:g}" for rate in (device.tflops["bf16"], device.tflops["f32"]))
    return (
        f"{device.arch}, {device.sm_count} SMs, {device.memory_gib} GiB, {device.gbps:g} GB/s, "
        f"{rates} TFLOP/s in bf16/f32, as published"
    )


def range_of(span: Span) -> str:
    """Return the sizes of a span in short: ``2..1280``, ``1281..``, ``64`` or ``any size``."""
    if span.high is None:
        return f"{span.low}.." if span.low else "any size"
    return f"{span.low}" if span.low == span.high else f"{span.low}..{span.high}"


def title_of(section: Section) -> str:
    """Return the dim of a section, the mode, the dims that are held, and the artifacts."""
    mode = "training" if section.grad else "inference"
    held = "".join(f", {name}={size}" for name, size in section.held)
    count = sum(len(graph.spans) for graph in section.graphs)
    return f"{section.dim}, {mode}{held}: {counted(count, 'artifact')}"


def _section(section: Section, found: Explanation, width: int) -> Iterator[str]:
    yield title_of(section)
    tried = ", ".join(map(str, section.tried))
    yield from fold(f"sizes compiled, in this order: {tried}", "  ", width=width)
    if len(section.graphs) > 1:
        split = f"graph breaks split the model into {len(section.graphs)} graphs"
        yield from fold(f"{split}, each with ranges of its own", "  ", width=width)
    for graph in section.graphs:
        yield ""
        yield f"  graph {graph.number}: {graph.function} ({_where(graph.path)}:{graph.line})"
        yield from _picture(graph, section, width)
        for span in graph.spans:
            yield from _span(span, width)
        if len(graph.spans) > found.recompile_limit:
            yield from fold(
                f"dynamo compiles a function at most {found.recompile_limit} times "
                "(recompile_limit) and runs it uncompiled from then on",
                "  ! ",
                width=width,
            )
    if section.uncovered is not None:
        yield from fold(
            f"stopped after {len(section.tried)} sizes (--max-compiles): the sizes "
            f"{section.uncovered} to {section.largest} have no artifact",
            "  ! ",
            width=width,
        )


def _span(span: Span, width: int) -> Iterator[str]:
    head = f"  {range_of(span):<{_NAMED - 3}} "
    yield from fold(f"compiled at {span.tuned_at}, {_served_by(span)}", head, width=width)
    if span.low_cause is span.high_cause is None:
        yield from fold("no guard of torch tests this dim", f"    {'':6} ", width=width)
    if span.low_cause is not None and span.low_cause == span.high_cause:
        yield from _cause(f"only {span.low}", span.low_cause, width)
    else:
        if span.low_cause is not None:
            yield from _cause(f"from {span.low}", span.low_cause, width)
        if span.high_cause is not None:
            yield from _cause(f"to {span.high}", span.high_cause, width)
    for condition in span.conditions:
        yield from _cause("only where", condition, width)
    if span.unexpected:
        yield from fold(
            f"an earlier artifact's guards on this dim allow {span.tuned_at}; dynamo compiled "
            f"again for another reason: {span.unexpected}",
            "    ! ",
            width=width,
        )
    if span.unbound:
        unbound = ", ".join(span.unbound)
        yield from fold(
            f"symbolic sizes that do not follow from this dim: {unbound}", "    ! ", width=width
        )


def _served_by(span: Span) -> str:
    sizes = span.sizes
    if len(sizes) > _LISTED:
        return f"its winners serve {len(sizes)} given sizes from {min(sizes)} to {max(sizes)}"
    named = ", ".join(map(str, sizes))
    return f"its winners serve {named}" if sizes else "no given size uses its winners"


def _cause(end: str, cause: Cause, width: int) -> Iterator[str]:
    yield from fold(f"{end}, {cause.kind}: {cause.sentence}", "    ", indent=6, width=width)
    yield from fold(f"guard {cause.expression}", "      ", width=width)
    for place in (cause.place, cause.user):
        if place is not None:
            yield f"      at {_where(place.path)}:{place.line} in {place.function}"


def _picture(graph: Graph, section: Section, width: int) -> Iterator[str]:
    """Yield a bar for each range on a logarithmic scale, with ``*`` where it was compiled."""
    room = width - _NAMED - 2
    low = min(section.sizes)
    high = max(section.largest, *(span.tuned_at for span in graph.spans))

    def column(size: int) -> int:
        share = (math.log(max(size, low)) - math.log(low)) / (math.log(high) - math.log(low))
        return round(min(share, 1.0) * (room - 1))

    for span in graph.spans:
        bar = [" "] * room
        last = high if span.high is None else min(span.high, high)
        for place in range(column(span.low), column(last) + 1):
            bar[place] = ":" if span.conditions else "="
        bar[column(span.tuned_at)] = "*"
        ends = ">" if span.high is None or span.high > high else ""
        yield f"  {range_of(span):<{_NAMED - 2}}{''.join(bar).rstrip()}{ends}"
    scale = [" "] * room
    for size in sorted({low, high, *section.sizes}, key=lambda size: size not in (low, high)):
        name, place = str(size), min(column(size), room - len(str(size)))
        around = scale[max(place - 1, 0) : place + len(name) + 1]
        if not any(letter != " " for letter in around):
            scale[place : place + len(name)] = name
    yield f"  {'':{_NAMED - 2}}{''.join(scale).rstrip()}"
    yield ""


def _where(path: str) -> str:
    """Return *path* from this folder on, where that is shorter."""
    if not Path(path).is_absolute():
        return path
    return min(path, os.path.relpath(path), key=len)
