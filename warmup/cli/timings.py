"""`warmup bench`, `compare` and `profile`: the commands that time models, layers and kernels.

Every ratio and sentence of a report is computed from the numbers that are printed with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from warmup.bench.attribution import Known, Reason
from warmup.bench.compare import (
    CompareRequest,
    Comparison,
    chart_of_comparison,
    document_of_comparison,
)
from warmup.bench.profile import (
    BucketProfile,
    KernelDifference,
    KernelLine,
    Profile,
    differences_of,
    profile_trace,
)
from warmup.bench.trace import RECORDED_CALLS, read_trace, record_trace
from warmup.cli import options
from warmup.cli.options import is_verbose
from warmup.cli.output import (
    ABSENT,
    PHASES_PAGE,
    TEXT_WIDTH,
    complain,
    digits,
    fold,
    grid,
    percent,
    print_report,
    record,
    say,
    spell_peaks,
    spell_phases,
    times,
    timing,
    versions,
)
from warmup.cli.streams import EXIT_FOUND, interruptible
from warmup.core.errors import SettingsError
from warmup.core.phases import phases_from
from warmup.core.rows import L2, Launch
from warmup.core.text import MIB, counted, printable
from warmup.core.trial import Samples
from warmup.keys.registry import kind_of

if TYPE_CHECKING:
    from warmup.bench.cells import BenchReport, BenchRequest, Cell, Chart


def bench(
    benchmark: Annotated[
        Literal["mm", "layers"], typer.Argument(metavar="mm|layers", help="Plain GEMMs, or layers.")
    ],
    layers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LAYER",
            help="Of layers: rmsnorm, softmax, cross-entropy, swiglu, layernorm (default all), or "
            "your own, FILE.py:Class.",
        ),
    ] = None,
    *,
    shapes: Annotated[
        str | None, typer.Option(help="MxKxN of mm, ROWSxCOLUMNS of layers; default usual ones.")
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help="Backends beside eager; default all.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bf16, f16 or f32; default f16, of layers bf16.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of timing; default 50, of layers 30.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="The table to serve; default a table that is built first.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for JSON and charts.")] = None,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time plain GEMMs or layers on several backends.

    They are timed eager, compiled, from a table and by the libraries that are installed.
    """
    if layers and benchmark != "layers":
        raise typer.BadParameter(f"bench {benchmark} takes no layers: {', '.join(layers)}")
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    from warmup.bench import backends as running
    from warmup.bench.cells import BenchRequest

    is_mm = benchmark == "mm"
    how = dtype or ("f16" if is_mm else "bf16"), rounds or (50 if is_mm else 30)
    request = BenchRequest(benchmark, *how, layers or (), shapes, backends, table, out, device)
    run_bench(running.bench, request, as_json=as_json)


def run_bench(run: Callable[..., BenchReport], request: BenchRequest, *, as_json: bool) -> None:
    """*run* the *request*, with a document after each shape, and a report also of its failure."""
    from warmup.bench.cells import chart_of, document, write_json

    kept: list[BenchReport] = []
    out, name = request.out, f"bench-{request.benchmark}"

    def keep(report: BenchReport) -> None:
        kept[:] = [report]
        if out is not None:
            write_json(document(report), out / f"{name}.json")

    def stop() -> None:
        where = "" if out is None else f", and in {out}"
        say(f"interrupted: {f'finished shapes are printed{where}' if kept else 'no shape was'}")

    with interruptible(stop):
        try:
            report = run(request, say=say, keep=keep)
        finally:
            for finished in kept:
                print_report(finished, spell_bench, document, as_json=as_json)
    if out is not None:
        say(f"wrote {out / f'{name}.json'}")
        names = {each: name if each == "mm" else f"{name}-{each}" for each in report.layers}
        charts = {f"{names[each]}.png": chart_of(report, each) for each in report.layers}
        for file in _draw_into(out, charts):
            say(f"wrote {file}")
    if not report.is_right:
        complain("a backend's results are wrong, or none was compared: see the reasons above")
        raise typer.Exit(EXIT_FOUND)


def _draw_into(folder: Path, charts: Mapping[str, Chart]) -> Iterator[Path]:
    """Yield the file of each chart; the numbers are complete without matplotlib, which draws."""
    from warmup.bench.cells import draw

    try:
        for name, chart in charts.items():
            draw(chart, folder / name)
            yield folder / name
    except SettingsError as error:
        say(f"no chart: {error}")


def spell_bench(report: BenchReport) -> Iterator[str]:
    where = report.provenance
    origin = f"{where['device']}, {versions(where['torch'], where['triton'])}, {where['date']}"
    yield from fold(origin, indent=2)
    yield (
        f"{report.dtype}, {timing(report.launch, report.l2)}, medians of {report.rounds} rounds "
        "with 95 % intervals"
    )
    if report.peaks is not None:
        yield spell_peaks(report.peaks, [report.dtype] if report.is_arithmetic else ())
    if report.table is not None:
        hits = ", ".join(f"{layer} {count}" for layer, count in report.table_hits.items())
        yield from fold(f"table {report.table[:16]}: hits {hits}, 0 misses; forward only", indent=2)
    for backend, version in report.versions.items():
        yield f"{backend}: version {version}"
    for backend, reason in report.missing.items():
        yield from fold(f"{backend}: {reason}", indent=2)
    for layer in report.layers:
        yield ""
        yield layer
        yield from _spell_cells(report, [cell for cell in report.cells if cell.layer == layer])
    yield ""
    yield "speed-up over eager: geometric mean, 95 % interval (number of shapes)"
    for row in (*report.layers, None) if len(report.layers) > 1 else (None,):
        for step in report.steps:
            means = [
                f"{backend} {times(mean['geomean'])} "
                f"{mean['interval'][0]:.2f}-{mean['interval'][1]:.2f} ({mean['shapes']})"
                for backend in report.backends
                if (mean := report.mean_speedup(backend, step, row)) is not None
            ]
            said = ", ".join(means) or "no verdict: times of eager are missing or scatter too far"
            yield from fold(said, f"{row or 'all':14}{step.short:9}")


def _spell_cells(report: BenchReport, cells: list[Cell]) -> Iterator[str]:
    head = ("shape", "pass", "backend", "us", "±%", report.unit, "peak", "speed-up", "error")
    rows, notes, before = [], [], None
    for cell in cells:
        place = (cell.shape, cell.step.short)
        numbers = ["failed", *[ABSENT] * 5]
        if cell.samples is not None:
            median, (low, high) = cell.samples.median, cell.samples.interval
            numbers = [
                digits(median),
                f"{50 * (high - low) / median:.1f}",
                digits(report.rate(cell)),
                percent(report.share(cell)),
                times(report.speedup(cell)),
                ABSENT if cell.error is None else f"{cell.error:.0e}",
            ]
        rows.append([*(place if place != before else ("", "")), cell.backend, *numbers])
        if cell.reason:
            notes.append(f"{' '.join(place)} {cell.backend}: {cell.reason}")
        ratio = report.table_ratio(cell.place) if place != before else None
        if ratio is not None and ratio["ratio"] is not None:
            notes.append(
                f"{' '.join(place)} table: {ratio['ratio']:.3f} of the time of {ratio['best']}, "
                f"{ratio['verdict']}"
            )
        before = place
    yield from grid(head, rows, texts=3, gap=1)
    for note in notes:
        yield from fold(note, indent=2)


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
    from warmup.bench.compare import race
    from warmup.cli.build_render import LiveLine

    assert model.model is not None  # the option is required
    how: dict[str, Any] = {"rounds": rounds, "launches": (launch,), "l2": l2, "freezing": freezing}
    what = {**model.words(), "table": table, "variants": variants}
    request = CompareRequest(model=model.model, **what, **how, out=out)
    with LiveLine("rounds") as progress, interruptible():
        (report,) = race(request, progress)
    if out is not None:
        write_json(document_of_comparison(report), out / "compare.json")
    print_report(report, spell_comparison, document_of_comparison, as_json=as_json)
    if out is not None:
        list(_draw_into(out, {"compare-speed.png": chart_of_comparison(report)}))
    if report.failed:
        complain(f"compare failed on: {', '.join(report.failed)}")
        raise typer.Exit(EXIT_FOUND)


def spell_comparison(report: Comparison) -> Iterator[str]:
    yield from heading(report)
    for lines in (sentences(report), _latencies(report), _starts(report)):
        yield ""
        yield from lines
    yield ""
    if not is_verbose():
        yield "seconds by phase of the starts: -v"
        return
    yield f"what the starts were made of, in seconds ({PHASES_PAGE}):"
    for result in report.results:
        if result.start is not None:
            yield from spell_phases(result.variant.name, phases_from(result.start["phases"]))


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
    limits = list(report.host_limits())
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
                    *(str(bucket) if result is timed[0] else "", result.variant.name),
                    *(digits(cell.median_us), f"{digits(low)}-{digits(high)}"),
                    *(f"{cell.device.spread:.1%}", digits(cell.wall_us)),
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
            wrong = [f"{cell.error:.1e}!" for cell in result.cells if not cell.agrees]
            largest = max((cell.error for cell in result.cells), default=None)
            error = ABSENT if largest is None else (*wrong, f"{largest:.1e}")[0]
            rows.append(
                [
                    result.variant.name,
                    f"{start['process_seconds']:.1f}",
                    f"{start['call_seconds']:.1f}",
                    *(ABSENT if count is None else str(count) for count in counts),
                    *(f"{start['peak_bytes'] / MIB:.0f}", error),
                ]
            )
    head = ("start of", "all s", "calls s", "benchmarks", "hits", "misses", "peak MiB", "error")
    return grid(head, rows, texts=1, gap=1)


PROFILE_SCHEMA: Final = 2  # of the document that `warmup profile --json` prints
_SHOWN_KERNELS: Final = 20  # kernels of a bucket in the text; the JSON has all
_COMPARED_TRACES: Final = 2
_PROFILE_COLUMNS: Final = "{:>6} {:>8} {:>6} {:>7} {:>6} {:>5} {:>7} {:>8} {:>6}"
_DIFFERENCE_COLUMNS: Final = "{:>10} {:>10} {:>9} {:>8} {:>16}"
_REASONS: Final = {
    None: "a row of the table",
    Reason.MISS: "no row in the table",
    Reason.NO_TABLE: "a decision that a row can be built for",
    Reason.LIBRARY: "a library's kernel, no choice of inductor",
    Reason.UNCOVERED: "generated, without a decision that rows are kept for",
    Reason.COPY: "a copy or a fill",
    Reason.UNTRACED: "not known: neither plan, shapes nor name say it",
}


def profile(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACE",
            help="A trace that torch.profiler exported, .json or .json.gz; two are compared.",
        ),
    ] = None,
    *,
    table: Annotated[Path | None, typer.Option(help="The table that chose the kernels.")] = None,
    model: options.ModelOptions,
    mode: Annotated[str, typer.Option(help="With --model: the mode of torch.compile.")] = "default",
    out: Annotated[Path | None, typer.Option(help="With --model: the trace to write.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what each kernel of a trace costs, what limits it, and which row chose it.

    Of two traces, before and after, say which kernels changed.
    """
    from warmup.table.store import read

    given = list(traces or ())
    tuned = None if table is None else read(table)
    if model.model is not None:
        if given:
            raise SettingsError("a trace and --model", "name the trace, or --model to record one")
        if out is None:
            raise SettingsError(
                "--model records a trace, and has no file for it", "name one: --out trace.json.gz"
            )
        record_trace(out, model=model.model, table=tuned, **model.words(), mode=mode)
        say(f"{out}: {RECORDED_CALLS} calls of each bucket")
        given = [out]
    if not 1 <= len(given) <= _COMPARED_TRACES:
        raise SettingsError(
            f"{len(given)} traces, and one is profiled, or two are compared",
            "name one trace, or the trace before and the trace after",
        )
    found = [profile_trace(read_trace(path), tuned) for path in given]
    if len(found) == _COMPARED_TRACES:
        differences = differences_of(*found)
        listed = [record(each, "added_us", "ratio", "is_certain") for each in differences]
        print_report(differences, _spell_differences, lambda _: listed, as_json=as_json)
    else:
        print_report(found[0], _spell_profile, _profile_document, as_json=as_json)


def _spell_profile(profile: Profile) -> Iterator[str]:
    clock = f" at {profile.clock_mhz} MHz" if profile.clock_mhz is not None else ""
    dtypes = {line.work.dtype for line in profile.lines if line.work and line.work.flops}
    peaks = () if profile.peaks is None else (spell_peaks(profile.peaks, dtypes),)
    for text in (f"{profile.device}{clock}", *peaks, *profile.assumptions):
        yield from fold(text, indent=2)
    for bucket in profile.buckets:
        yield ""
        yield from _spell_bucket(bucket, is_cpu=profile.is_cpu)
    yield ""
    yield "device time by decision"
    for reason, text in _REASONS.items():
        share = profile.share_of(reason)
        if share > 0 or reason in (None, Reason.UNTRACED):
            yield from fold(f"{share:>6.1%}  {text}", "  ", indent=10)
    known = {how: sum(e.total_us for e in profile.lines if e.known_by is how) for how in Known}
    parts = [f"by {how} {_part(us, profile.device_us)}" for how, us in known.items() if us > 0]
    yield from fold(f"known {', '.join(parts)}", "  ", indent=4)
    if profile.outside_us > 0:
        yield f"  {digits(profile.outside_us)} us of kernels are outside of any marked call"
    if profile.skipped:
        yield f"  {counted(profile.skipped, 'event')} of the device without a time left out"
    drifted = [line for line in profile.lines if line.has_drifted]
    if drifted:
        worst = max(drifted, key=lambda line: line.total_us)
        text = f"drifted: {counted(len(drifted), 'kernel')} not within 10 % of the row's time"
        yield from fold(f"{text}, most of all {worst.keys[0]} ({times(worst.ratio)})", indent=2)
    missed = profile.missed_us
    if missed:
        cost = _part(sum(missed.values()), profile.device_us)
        text = f"worth building: {counted(len(missed), 'decision')} without a row, {cost} of the"
        yield from fold(f"{text} device's time, most of all {next(iter(missed))}", indent=2)


def _spell_bucket(bucket: BucketProfile, *, is_cpu: bool) -> Iterator[str]:
    each, window_us = bucket.iterations, bucket.busy_us + bucket.host_gap_us + bucket.device_gap_us
    device = "the operators" if is_cpu else "the device"
    late = (bucket.device_gap_us + bucket.host_gap_us) if is_cpu else bucket.host_gap_us
    yield from fold(
        f"{bucket.bucket or 'the whole trace'}: {counted(each, 'call')} of "
        f"{digits(window_us / each)} us, of which {device} worked {digits(bucket.busy_us / each)} "
        f"us ({_part(bucket.busy_us, window_us)}) and waited for the host {digits(late / each)} us",
        indent=2,
    )
    head = ("share", "us", "calls", "TFLOP/s", "GB/s", "peak", "limit", "row us", "ratio")
    yield _PROFILE_COLUMNS.format(*head)
    for line in bucket.lines[:_SHOWN_KERNELS]:
        yield from _spell_line(line, each)
    rest = bucket.lines[_SHOWN_KERNELS:]
    if rest:
        share = percent(sum(line.share for line in rest))
        yield f"{share:>6}  {counted(len(rest), 'more kernel')} (--json)"


def _spell_line(line: KernelLine, iterations: int) -> Iterator[str]:
    us, calls = digits(line.total_us / iterations), f"{len(line.us) / iterations:g}"
    yield _PROFILE_COLUMNS.format(
        *(f"{line.share:.1%}", us, calls, digits(line.tflops)),
        *(ABSENT if line.gbps is None else f"{line.gbps:.0f}", percent(line.peak_share)),
        *(line.limit or ABSENT, digits(line.row_us)),
        times(line.ratio) + ("" if line.is_whole else "+"),
    )
    name, room = printable(line.name), TEXT_WIDTH - 4
    yield f"    {name if len(name) <= room else f'{name[: room - 23]}...{name[-20:]}'}"
    yield from fold(_decision_of(line), "      ", indent=8)


def _decision_of(line: KernelLine) -> str:
    if line.row is not None:
        kind = kind_of(line.keys[0])
        question = kind.ingredients(line.keys[0]).get(kind.question or "", "")
        label = f"{kind.brief(line.keys[0])} {question}".rstrip()
        partly = "" if line.is_whole else " (the row has the matmul's own time only)"
        return f"{label}: {line.row.winner.short}{partly}"
    if len(line.keys) > 1:
        return f"one of {len(line.keys)} decisions: {'; '.join(line.keys)}"
    return ": ".join((*line.keys, _REASONS[line.no_row]))


def _part(us: float, whole: float) -> str:
    return f"{us / whole:.1%}" if whole else ABSENT


def _profile_document(profile: Profile) -> dict[str, Any]:
    return {
        "schema": PROFILE_SCHEMA,
        **record(profile, "device_us", "missed_us"),
        "shares": {reason or "row": profile.share_of(reason) for reason in _REASONS},
        "buckets": [
            {
                **record(bucket, without=("lines",)),
                "kernels": [_line_document(line) for line in bucket.lines],
            }
            for bucket in profile.buckets
        ],
        "drifted": [line.keys[0] for line in profile.lines if line.has_drifted],
    }


def _line_document(line: KernelLine) -> dict[str, Any]:
    work = line.work
    return {
        **record(line, "total_us", without=("row", "us", "per_iteration", "work")),
        "winner": None if line.row is None else str(line.row.winner),
        "count": len(line.us),
        "median_us": Samples(line.us).median,
        "dtype": work and work.dtype,
        "flops": work and work.flops,
        "bytes": work and work.moved,
    }


def _spell_differences(found: Sequence[KernelDifference]) -> Iterator[str]:
    if not found:
        yield "the traces have no bucket in common"
    shown = 0
    for each in found:
        if each.subject is None:
            shown = 0
            yield ""
            yield f"{each.bucket or 'the whole trace'}: device time of a call"
            head = ("before us", "after us", "change us", "ratio", "95 % interval")
            yield _DIFFERENCE_COLUMNS.format(*head)
            yield f"{_figures(each)}  all kernels"
        elif shown < _SHOWN_KERNELS:
            shown += 1
            yield _figures(each)
            yield from fold(each.subject, "    ", indent=6)
            if each.before != each.after:
                names = (" + ".join(side) or "nothing" for side in (each.before, each.after))
                yield from fold(" -> ".join(names), "      ", indent=8)


def _figures(each: KernelDifference) -> str:
    interval = ABSENT
    if each.interval is not None:
        mark = "" if each.is_certain else " ~"
        interval = f"{each.interval[0]:.2f} to {each.interval[1]:.2f}{mark}"
    sign = "+" if each.added_us > 0 else "-" if each.added_us < 0 else ""
    change = f"{sign}{digits(abs(each.added_us))}"
    times_us = digits(each.before_us), digits(each.after_us)
    return _DIFFERENCE_COLUMNS.format(*times_us, change, times(each.ratio), interval)
