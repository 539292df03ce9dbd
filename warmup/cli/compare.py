"""`warmup compare`: one model, started and served in several ways. A report on stdout, and files.

Exit code 1 when a variant that serves from a table failed or disagrees with eager. Every ratio and
sentence of the report is computed from the numbers that are printed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from warmup.bench.compare import (
    BucketTime,
    CompareRequest,
    Comparison,
    chart_of,
    document,
)
from warmup.cli import options
from warmup.cli.options import is_verbose
from warmup.cli.output import (
    ABSENT,
    PHASES_PAGE,
    complain,
    digits,
    fold,
    grid,
    print_report,
    say,
    spell_phases,
    timing,
    versions,
)
from warmup.cli.streams import EXIT_FOUND, interruptible
from warmup.core.errors import SettingsError
from warmup.core.phases import phases_from
from warmup.core.rows import L2, Launch
from warmup.core.text import MIB


def compare(
    *,
    model: options.ModelOptions,
    table: Annotated[
        Path | None, typer.Option(help="The table to serve; default the table that install finds.")
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Any of eager,default,max-autotune,table,table-padded, and other models: "
            "NAME=MODEL or NAME=MODEL+table. The first two always run. Default all."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of timing, 6 or more.")] = 30,
    launch: Annotated[
        Launch, typer.Option(help="How timed calls are launched: eager (one by one) or cudagraph.")
    ] = Launch.EAGER,
    l2: Annotated[L2, typer.Option(help="Timed calls meet a cold or a warm L2 cache.")] = L2.WARM,
    freezing: options.Freezing = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for compare.json, logs and, drawn, the chart.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Time one model eager, compiled, max-autotuned and from a table.

    Each variant starts in a process of its own, with empty caches.
    """
    from warmup.bench.cells import write_json
    from warmup.bench.race import race
    from warmup.cli.build_render import CompareProgress

    assert model.model is not None  # the option is required
    request = CompareRequest(
        model=model.model,
        **model.words(),
        table=table,
        variants=variants,
        rounds=rounds,
        launches=(launch,),
        l2=l2,
        out=out,
        freezing=freezing,
    )
    with CompareProgress() as progress, interruptible():
        (report,) = race(request, progress)
    if out is not None:
        write_json(document(report), out / "compare.json")
    print_report(report, spell, document, as_json=as_json)
    if out is not None:
        from warmup.bench.cells import draw

        try:
            draw(chart_of(report), out / "compare-speed.png")
        except SettingsError as error:  # the numbers are complete without the chart
            say(f"no chart: {error}")
    if report.failed:
        complain(f"compare failed on: {', '.join(report.failed)}")
        raise typer.Exit(EXIT_FOUND)


def spell(report: Comparison) -> Iterator[str]:
    """Yield where the comparison ran, a verdict for each variant, latencies and starts.

    With -v the phases of the starts follow. No line is wider than 80 columns where names allow.
    """
    yield from heading(report)
    phases = _phases(report) if is_verbose() else ["seconds by phase of the starts: -v"]
    for lines in (sentences(report), _latencies(report), _starts(report), phases):
        yield ""
        yield from lines


def heading(report: Comparison) -> Iterator[str]:
    origin = report.origin
    here = origin.runtime
    yield f"{origin.model} ({origin.dtype}) on {here.device.name or 'an unnamed device'}"
    yield f"{versions(here.torch, here.triton)}, warmup {origin.warmup}, {origin.created}"
    if origin.table is not None and origin.digest is not None:
        yield f"table {origin.table}, digest {origin.digest[:16]}"
    how = f"{origin.rounds} rounds, {timing(origin.launch, origin.l2)}"
    yield f"{how}, every start from empty caches"


def sentences(report: Comparison) -> Iterator[str]:
    count = len(report.buckets)
    buckets = "1 bucket" if count == 1 else f"all {count} buckets"
    yield f"speed-up over default, geometric mean of {buckets}, with the 95 % interval:"
    for result in report.results:
        yield from fold(f"{result.variant.name}: {report.verdict(result)}", "  ", indent=4)
        if result.failure is not None and result.log is not None:
            yield f"    log {result.log}"
    yield from _host_limits(report)
    for remark in report.remarks:
        yield from fold(remark, "note: ", indent=2)


def _host_limits(report: Comparison) -> Iterator[str]:
    """Yield where the host sets the time of calls launched one by one, and what helps."""
    limits = report.host_limits()
    if not limits:
        return
    yield from fold(
        f"launched one by one, calls in {len(limits)} of {len(report.buckets)} buckets take what "
        "the host needs to enqueue them, not what the device needs to run them:",
        indent=2,
    )
    for bucket, costs in limits:
        each = (
            f"{name} {digits(cost.launched_us)} us{'' if cost.is_host_limited else ' (device)'}"
            for name, cost in costs.items()
        )
        yield from fold(", ".join(each), f"  {bucket}: ", indent=4)
    advice = (
        "serve these buckets with CUDA graphs, with which the speed-ups above were measured"
        if report.origin.launch is Launch.CUDAGRAPH
        else "in these buckets the speed-ups above need CUDA graphs "
        "(mode reduce-overhead or max-autotune): compare with --launch cudagraph"
    )
    yield from fold(advice, "  ", indent=2)


def _latencies(report: Comparison) -> Iterator[str]:
    timed = [result for result in report.results if result.cells]
    rows = []
    for index, bucket in enumerate(report.buckets):
        for result in timed:
            cell, speedups = result.cells[index], report.speedups(result)
            (low, high), ratio = cell.interval_us, speedups[index] if speedups else None
            rows.append(
                [
                    str(bucket) if result is timed[0] else "",
                    result.variant.name,
                    digits(cell.median_us),
                    f"{digits(low)}-{digits(high)}",
                    f"{cell.device.spread:.1%}",
                    digits(cell.wall_us),
                    ABSENT if not speedups else "too busy" if ratio is None else ratio.brief,
                ]
            )
    head = ("bucket", "variant", "us", "95 %", "spread", "wall us", "over default")
    return grid(head, rows, texts=2, gap=1)


def _starts(report: Comparison) -> Iterator[str]:
    rows: list[Sequence[str]] = []
    for result in report.results:
        if (start := result.start) is not None:
            counts = (start["benchmarks"], start["hits"], start["misses"])
            rows.append(
                [
                    result.variant.name,
                    f"{start['process_seconds']:.1f}",
                    f"{start['call_seconds']:.1f}",
                    *(ABSENT if count is None else str(count) for count in counts),
                    f"{start['peak_bytes'] / MIB:.0f}",
                    _spell_error(result.cells),
                ]
            )
    head = ("start of", "all s", "calls s", "benchmarks", "hits", "misses", "peak MiB", "error")
    return grid(head, rows, texts=1, gap=1)


def _spell_error(cells: Sequence[BucketTime]) -> str:
    """Return the largest error of the buckets; with ! that of the first out of tolerance."""
    if not cells:
        return ABSENT
    wrong = [cell for cell in cells if not cell.agrees]
    largest = wrong[0] if wrong else max(cells, key=lambda cell: cell.error)
    return f"{largest.error:.1e}{'!' if wrong else ''}"


def _phases(report: Comparison) -> Iterator[str]:
    yield f"what the starts were made of, in seconds ({PHASES_PAGE}):"
    for result in report.results:
        if result.start is not None:
            yield from spell_phases(result.variant.name, phases_from(result.start["phases"]))
