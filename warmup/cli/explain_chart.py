"""The ranges that `warmup explain` found, as a chart: a row for each artifact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warmup.bench.charts.chart import Chart, Series
from warmup.cli.explain_render import range_of, title_of
from warmup.diagnostics.recompiles.causes import CauseKind
from warmup.diagnostics.recompiles.explain import Explanation
from warmup.diagnostics.recompiles.section import Section

_ENDS: Final = {
    CauseKind.LIMIT: "ends at a hard limit of torch",
    CauseKind.HEURISTIC: "ends at a heuristic of inductor",
    CauseKind.MODEL: "ends by the model's own code",
    CauseKind.UNKNOWN: "ends at a guard of unknown purpose",
    None: "has no end",
}
_NOTHING: Final = (None, None, None)

_RangeRow = tuple[
    str, CauseKind | None, tuple[int, int, int] | None
]  # name, end; compiled, low, high


def chart_of(found: Explanation) -> Chart:
    """Return the chart of *found*: its sections below each other, their titles as empty rows."""
    rows = [row for section in found.sections for row in _rows(section)]
    series = []
    for kind, name in _ENDS.items():
        sizes = [span if span and end is kind else _NOTHING for _, end, span in rows]
        values, low, high = zip(*sizes, strict=True)
        series.append(Series(name=name, values=values, low=low, high=high))
    assumed = "" if found.assumed is None else " (assumed)"
    return Chart(
        title=f"Artifacts of {found.model.rpartition('.')[2]} by size",
        subtitle="A bar covers the sizes that an artifact serves; its colour says how it ends.",
        x_label="",
        y_label="size",
        groups=tuple(name for name, _, _ in rows),
        series=tuple(series),
        kind="ranges",
        dot="size that was compiled",
        note=f"{found.device}{assumed}, torch {found.torch}, mode {found.mode}",
    )


def _rows(section: Section) -> Iterator[_RangeRow]:
    """Yield the title of *section*, then its artifacts, each within the sizes of the section."""
    yield title_of(section), None, None
    smallest = min(section.sizes)
    for graph in section.graphs:
        if len(section.graphs) > 1:
            yield f"graph {graph.number}: {graph.function}", None, None
        for span in graph.spans:
            high = section.largest if span.high is None else min(span.high, section.largest)
            low = min(max(span.low, smallest), span.tuned_at)
            name = f"{range_of(span)}, compiled at {span.tuned_at}"
            if span.conditions:
                name += ", some sizes left out"
            kind = span.high_cause.kind if span.high_cause else None
            yield name, kind, (span.tuned_at, low, max(high, span.tuned_at))
