"""`warmup profile`: a trace of torch's profiler by kernel, with the rows behind the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.bench.attribution import Known, Reason
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
from warmup.cli.output import (
    ABSENT,
    TEXT_WIDTH,
    digits,
    fold,
    percent,
    print_report,
    record,
    say,
    spell_peaks,
    times,
)
from warmup.core.errors import SettingsError
from warmup.core.text import counted, printable
from warmup.core.trial import Samples
from warmup.keys.registry import kind_of

PROFILE_SCHEMA: Final = 2  # of the document that `warmup profile --json` prints
_SHOWN: Final = 20  # kernels of a bucket in the text; the JSON has all
_COMPARED_TRACES: Final = 2
_COLUMNS: Final = "{:>6} {:>8} {:>6} {:>7} {:>6} {:>5} {:>7} {:>8} {:>6}"
_HEAD: Final = _COLUMNS.format(
    *("share", "us", "calls", "TFLOP/s", "GB/s", "peak", "limit", "row us", "ratio")
)
_DIFFERENCE_COLUMNS: Final = "{:>10} {:>10} {:>9} {:>8} {:>16}"
_DIFFERENCE_HEAD: Final = _DIFFERENCE_COLUMNS.format(
    *("before us", "after us", "change us", "ratio", "95 % interval")
)
_MEANS: Final = {
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
        print_report(differences, _spell_differences, _differences_document, as_json=as_json)
    else:
        print_report(found[0], _spell, _document, as_json=as_json)


def _spell(profile: Profile) -> Iterator[str]:
    """Yield the profile: each bucket's kernels, then what has a row, and what is to be built."""
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
    for reason, text in _MEANS.items():
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
    yield _HEAD
    for line in bucket.lines[:_SHOWN]:
        yield from _spell_line(line, each)
    rest = bucket.lines[_SHOWN:]
    if rest:
        share = percent(sum(line.share for line in rest))
        yield f"{share:>6}  {counted(len(rest), 'more kernel')} (--json)"


def _spell_line(line: KernelLine, iterations: int) -> Iterator[str]:
    yield _COLUMNS.format(
        f"{line.share:.1%}",
        digits(line.total_us / iterations),
        f"{len(line.us) / iterations:g}",
        digits(line.tflops),
        ABSENT if line.gbps is None else f"{line.gbps:.0f}",
        percent(line.peak_share),
        line.limit or ABSENT,
        digits(line.row_us),
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
    return ": ".join((*line.keys, _MEANS[line.no_row]))


def _part(us: float, whole: float) -> str:
    return f"{us / whole:.1%}" if whole else ABSENT


def _document(profile: Profile) -> dict[str, Any]:
    return {
        "schema": PROFILE_SCHEMA,
        **record(profile, "device_us", "missed_us"),
        "shares": {reason or "row": profile.share_of(reason) for reason in _MEANS},
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
    """Yield for each bucket the change of a call, then the largest changes of its kernels."""
    if not found:
        yield "the traces have no bucket in common"
    shown = 0
    for each in found:
        if each.subject is None:
            shown = 0
            yield ""
            yield f"{each.bucket or 'the whole trace'}: device time of a call"
            yield _DIFFERENCE_HEAD
            yield f"{_figures(each)}  all kernels"
        elif shown < _SHOWN:
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


def _differences_document(found: Sequence[KernelDifference]) -> list[dict[str, Any]]:
    return [record(each, "added_us", "ratio", "is_certain") for each in found]
