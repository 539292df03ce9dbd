"""The plan of a build, from `warmup build --dry-run`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from warmup.cli.output import fold, terminal_width
from warmup.core.counted import counted
from warmup.core.uncompiled import Uncompiled
from warmup.tuning.report import BuildReport, name_of

_MAX_PLANNED: Final = 20  # problems to tune


def spell_plan(report: BuildReport) -> Iterator[str]:
    """Yield what each bucket asks for, the problems that would be tuned, and the expected time."""
    plan = report.plan
    assert plan is not None
    for one in plan.buckets:
        without = f", without {counted(one.left_out, 'repeated layer')}" if one.left_out else ""
        name = name_of(one.bucket)
        yield (
            f"{name}: {counted(len(one.missing), 'problem')} to tune, {len(one.known)} in "
            f"the table already{without}"
        )
        yield from spell_graphs(name, one.graphs, one.uncompiled)
    for key in plan.missing[:_MAX_PLANNED]:
        yield f"to tune: {key}"
    if len(plan.missing) > _MAX_PLANNED:
        yield f"{len(plan.missing) - _MAX_PLANNED} more to tune; --json has all"
    yield from plan.remarks
    known = f"{len(plan.known)} in the table already"
    known += f" or in earlier tables ({len(report.taken)})" if report.taken else ""
    total = f"{report.path}: {counted(len(plan.missing), 'problem')} to tune, {known}"
    yield total
    yield from spell_sources(report)
    if not plan.missing:
        yield "nothing to tune"
    yield f"dry run: nothing was measured or written; it took {report.seconds:.1f} s"


def spell_sources(report: BuildReport) -> Iterator[str]:
    """Yield a line for each table of ``--rows-from``: rows taken, and rows refused by reason."""
    for source in report.rows_from:
        line = f"rows from {source.path}: {len(source.taken)} taken"
        reasons = "; ".join(f"{count} refused: {why}" for why, count in source.reasons.items())
        yield from fold(
            f"{line}{', ' if reasons else ''}{reasons}", indent=2, width=terminal_width()
        )


def document_of_sources(report: BuildReport) -> list[dict[str, Any]]:
    """Return what was used of each table of ``--rows-from`` as JSON values."""
    return [
        {"path": str(one.path), "taken": list(one.taken), "refused": dict(one.reasons)}
        for one in report.rows_from
    ]


def spell_graphs(bucket: str, graphs: int, uncompiled: Uncompiled) -> Iterator[str]:
    """Yield lines about a model whose graph breaks or that runs uncompiled; else nothing."""
    lines = list(uncompiled.lines())
    if graphs > 1:
        lines.insert(
            0,
            f"the model breaks into {graphs} graphs; branches that these inputs do not take are "
            "not built (TORCH_LOGS=graph_breaks says more)",
        )
    for line in lines:
        yield from fold(f"{bucket}: {line}", indent=2, width=terminal_width())


def document_of_plan(report: BuildReport) -> dict[str, Any]:
    """Return the plan as JSON values; docs/reference/cli.md#build has each."""
    plan = report.plan
    assert plan is not None
    return {
        "path": str(report.path),
        "buckets": [
            {
                "bucket": dict(one.bucket.sizes),
                "known": list(one.known),
                "missing": list(one.missing),
                "graphs": one.graphs,
                "uncompiled": asdict(one.uncompiled),
                "left_out": one.left_out,
                "seconds": round(one.seconds, 3),
            }
            for one in plan.buckets
        ],
        "known": list(plan.known),
        "missing": list(plan.missing),
        "rows_from": document_of_sources(report),
        "remarks": list(plan.remarks),
        "seconds": round(report.seconds, 3),
    }
