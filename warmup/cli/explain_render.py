"""What `warmup explain` found, as text with a picture of the ranges, and as JSON."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from warmup.core.errors import printable
from warmup.diagnostics.recompiles.causes import Cause
from warmup.diagnostics.recompiles.explain import Explanation, Graph, Section
from warmup.diagnostics.recompiles.ranges import Span

_WIDTH: Final = 80
_NAMED: Final = 16  # columns of the picture that name a range


def print_explanation(found: Explanation) -> None:
    """Print every section: the ranges as a picture, then each range with its ends."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    for line in spell_explanation(found, min(width, 2 * _WIDTH)):
        sys.stdout.write(f"{line}\n")


def print_explanation_json(found: Explanation) -> None:
    """Print everything that was found."""
    json.dump(asdict(found), sys.stdout, indent=2)
    sys.stdout.write("\n")


def spell_explanation(found: Explanation, width: int) -> Iterator[str]:
    """Yield the lines of the report, none wider than *width* where words allow."""
    head = f"{found.model} on {found.device}, torch {found.torch}, mode {found.mode}"
    yield from _wrap(f"{head}; nothing was tuned, timed or built", "", width)
    for section in found.sections:
        yield ""
        yield from _section(section, found, width)


def range_of(span: Span) -> str:
    """Return the sizes of a span as it is read: ``2..1280``, ``1281..`` or ``one``."""
    if span.high is None:
        return f"{span.low}.." if span.low else "any size"
    return f"{span.low}" if span.low == span.high else f"{span.low}..{span.high}"


def title_of(section: Section) -> str:
    """Return what a section is about, in a line."""
    way = "training" if section.grad else "inference"
    held = "".join(f", {name}={size}" for name, size in section.held)
    count = sum(len(graph.spans) for graph in section.graphs)
    artifacts = f"{count} artifact{'s' if count > 1 else ''}"
    return f"{section.dim}, {way}{held}: {artifacts}"


def _section(section: Section, found: Explanation, width: int) -> Iterator[str]:
    yield title_of(section)
    tried = ", ".join(map(str, section.tried))
    yield from _wrap(f"sizes run, in this order: {tried}", "  ", width)
    if len(section.graphs) > 1:
        yield from _wrap(
            f"the model breaks into {len(section.graphs)} graphs, each with ranges of its own",
            "  ",
            width,
        )
    for graph in section.graphs:
        yield ""
        yield f"  graph {graph.number}: {graph.function} ({_where(graph.path)}:{graph.line})"
        yield from _picture(graph, section, width)
        for span in graph.spans:
            yield from _span(span, width)
        if len(graph.spans) > found.recompile_limit:
            yield from _wrap(
                f"dynamo compiles one piece of code {found.recompile_limit} times "
                "(recompile_limit), and runs it uncompiled from then on",
                "  ! ",
                width,
            )
    if section.uncovered is not None:
        yield from _wrap(
            f"stopped after {len(section.tried)} sizes; from {section.uncovered} on sizes up to "
            f"{section.largest} are without an artifact (--max-compiles)",
            "  ! ",
            width,
        )


def _span(span: Span, width: int) -> Iterator[str]:
    serves = ", ".join(map(str, span.sizes)) or "none of those asked about"
    winner = f"compiled at {span.tuned_at}, whose winners serve {serves}"
    yield from _wrap(winner, f"  {range_of(span):<{_NAMED - 3}} ", width)
    if span.low_cause is span.high_cause is None:
        yield from _wrap("no guard of torch looks at this dim", f"    {'':6} ", width)
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
        yield from _wrap(
            f"an earlier artifact's guards on this dim allow {span.tuned_at}; dynamo compiled "
            f"again for another reason: {span.unexpected}",
            "    ! ",
            width,
        )
    if span.unbound:
        yield from _wrap(
            f"other symbolic sizes, taken as they were: {', '.join(span.unbound)}", "    ! ", width
        )


def _cause(end: str, cause: Cause, width: int) -> Iterator[str]:
    yield from _wrap(f"{end}, {cause.kind}: {cause.sentence}", "    ", width, "      ")
    yield from _wrap(f"guard {cause.expression}", "      ", width)
    for place in (cause.place, cause.user):
        if place is not None:
            name = _where(place.path)
            yield f"      at {printable(name)}:{place.line} in {printable(place.function)}"


def _picture(graph: Graph, section: Section, width: int) -> Iterator[str]:
    """Yield one bar for each range on a scale of powers, with ``*`` where it was compiled."""
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


def _wrap(text: str, head: str, width: int, indent: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width=width,
        initial_indent=head,
        subsequent_indent=" " * len(head) if indent is None else indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
