"""The ranges that `warmup explain` found, drawn as SVG: a bar for each, sizes on a scale of powers.

`warmup.bench.charts` draws values of groups and needs matplotlib; ranges are rectangles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from warmup.cli.explain_render import range_of, title_of
from warmup.diagnostics.recompiles.causes import CauseKind
from warmup.diagnostics.recompiles.explain import Explanation, Section
from warmup.diagnostics.recompiles.ranges import Span

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 800, 130, 40, 26, 16
_COLOURS: Final = {  # Okabe and Ito's, by what ends the range above
    CauseKind.LIMIT: "#0072B2",
    CauseKind.HEURISTIC: "#E69F00",
    CauseKind.MODEL: "#009E73",
    CauseKind.UNKNOWN: "#999999",
    None: "#56B4E9",
}


def draw_ranges(found: Explanation) -> str:
    """Return the picture as a document of SVG; the same ranges give the same text."""
    top = _ROW
    parts = [_text(10, top, f"{found.model}, {found.device}, torch {found.torch}", bold=True)]
    for section in found.sections:
        top += 2 * _ROW
        parts.append(_text(10, top, title_of(section)))
        for graph in section.graphs:
            if len(section.graphs) > 1:
                top += _ROW
                parts.append(_text(10, top, f"graph {graph.number}: {graph.function}"))
            for span in graph.spans:
                top += _ROW
                parts += _bar(span, section, top)
        top += _ROW
        parts += _scale(section, top)
    top += 2 * _ROW
    parts += _legend(top)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + _ROW}" '
        f'font-family="sans-serif" font-size="13" fill="#222222">'
    )
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join((head, ground, *parts, "</svg>", ""))


def _x(size: int, section: Section) -> float:
    low, high = min(section.sizes), section.largest
    share = (math.log(max(size, low)) - math.log(low)) / (math.log(high) - math.log(low))
    return _LEFT + min(share, 1.0) * (_WIDTH - _LEFT - _RIGHT)


def _bar(span: Span, section: Section, top: int) -> Iterator[str]:
    begin = _x(span.low, section)
    end = _x(section.largest if span.high is None else span.high, section)
    colour = _COLOURS[span.high_cause.kind if span.high_cause else None]
    opacity = "0.4" if span.conditions else "0.9"
    yield _text(10, top, range_of(span))
    yield (
        f'<rect x="{begin:.1f}" y="{top - _BAR + 3}" width="{max(end - begin, 3):.1f}" '
        f'height="{_BAR}" fill="{colour}" fill-opacity="{opacity}" stroke="#222222">'
        f"<title>{escape(_said(span))}</title></rect>"
    )
    x = _x(span.tuned_at, section)
    yield f'<circle cx="{x:.1f}" cy="{top - _BAR / 2 + 3:.1f}" r="4" fill="#222222"/>'


def _said(span: Span) -> str:
    said = f"{range_of(span)}, compiled at {span.tuned_at}"
    if span.high_cause is None:
        return said
    return f"{said}; ends by {span.high_cause.expression}, {span.high_cause.place}"


def _scale(section: Section, top: int) -> Iterator[str]:
    last = -math.inf
    for size in sorted({*section.sizes, section.largest}):
        x = _x(size, section)
        if x - last > 8 * len(str(size)):
            yield _text(x, top, str(size), anchor="middle")
            last = x


def _legend(top: int) -> Iterator[str]:
    names = {
        CauseKind.LIMIT: "ends at a hard limit",
        CauseKind.HEURISTIC: "at a heuristic",
        CauseKind.MODEL: "by the model's code",
        CauseKind.UNKNOWN: "unknown",
        None: "no end",
    }
    for number, (kind, name) in enumerate(names.items()):
        x = 10 + 155 * number
        yield f'<rect x="{x}" y="{top - 11}" width="12" height="12" fill="{_COLOURS[kind]}"/>'
        yield _text(x + 18, top, name)


def _text(x: float, y: int, text: str, *, bold: bool = False, anchor: str = "start") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
