"""A profile, or the difference of two, as text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from warmup.cli.output import ABSENT, TEXT_WIDTH, digits, fold, percent, spell_peaks, times
from warmup.core.counted import counted
from warmup.core.error_text import printable
from warmup.core.samples import Samples
from warmup.diagnostics.profile.attribution import Known, Reason
from warmup.diagnostics.profile.difference import KernelDifference
from warmup.diagnostics.profile.findings import (
    MissedCost,
    drifted_lines,
    missed_costs,
    review_profile,
)
from warmup.diagnostics.profile.profile import PROFILE_SCHEMA, BucketProfile, KernelLine, Profile
from warmup.keys.registry import kind_of

_KERNEL_HEAD: Final = (
    "share",
    "us",
    "calls",
    "TFLOP/s",
    "GB/s",
    "peak",
    "limit",
    "row us",
    "ratio",
)
_WIDTHS: Final = (6, 8, 6, 7, 6, 5, 7, 8, 6)
_DIFFERENCE_WIDTHS: Final = (10, 10, 9, 8, 16)
_MEANS: Final = {
    Reason.MISS: "no row in the table",
    Reason.NO_TABLE: "a decision that a row can be built for",
    Reason.LIBRARY: "a library's kernel, no choice of inductor",
    Reason.UNCOVERED: "generated, without a decision that rows are kept for",
    Reason.COPY: "a copy or a fill",
    Reason.UNTRACED: "not known: neither plan, shapes nor name say it",
}
_REASONS: Final = (None, *Reason)


def spell(profile: Profile, top: int) -> Iterator[str]:
    """Yield the profile: each bucket's kernels, *top* of them, then what is to be done about it."""
    clock = f" at {profile.clock_mhz} MHz" if profile.clock_mhz is not None else ""
    yield from fold(f"{profile.device}{clock}", indent=2)
    if profile.peaks is not None:
        dtypes = {line.dtype for line in profile.lines if line.flops}
        yield from fold(spell_peaks(profile.peaks, dtypes), indent=2)
    for assumption in profile.assumptions:
        yield from fold(assumption, indent=2)
    for bucket in profile.buckets:
        yield ""
        yield from _bucket(bucket, top, is_cpu=profile.is_cpu)
    yield ""
    yield from _shares(profile)
    yield from _drifts(profile)
    yield from _missed(profile, missed_costs(profile), top)
    doubts = review_profile(profile)
    if doubts:
        yield f"to look at ({len(doubts)})"
    for doubt in doubts[:top]:
        yield from fold(f"{doubt.subject}: {doubt.reason}", "  ", indent=4)


def _bucket(bucket: BucketProfile, top: int, *, is_cpu: bool) -> Iterator[str]:
    name = bucket.bucket or "the whole trace"
    gaps, each = bucket.gaps, max(bucket.iterations, 1)
    device = "the operators" if is_cpu else "the device"
    yield from fold(
        f"{name}: {counted(bucket.iterations, 'call')} of {digits(gaps.window / each)} us, of "
        f"which {device} worked {digits(gaps.busy / each)} us ({_part(gaps.busy, gaps.window)})",
        indent=2,
    )
    yield _cells(_KERNEL_HEAD)
    for line in bucket.lines[:top]:
        yield from _line(line, each)
    rest = bucket.lines[top:]
    if rest:
        share = percent(sum(line.share for line in rest))
        yield f"{share:>6}  {counted(len(rest), 'more kernel')} (--top)"
    for us, label in (
        (gaps.host, "the device waited for the host: kernels were enqueued late"),
        (gaps.device, "the device waited between kernels that were enqueued in time"),
    ):
        if us > 0 and not (is_cpu and us is gaps.device):
            share = f"{us / gaps.busy:.1%}" if gaps.busy else ABSENT
            text = label if not is_cpu else "the host did other things than operators"
            yield from fold(f"{share:>6} {digits(us / each):>8}  gap: {text}", indent=17)
    if gaps.overlapped > 0:
        yield from fold(
            f"{digits(gaps.overlapped / each)} us of the kernels ran beside others, and are in the "
            "shares twice",
            indent=2,
        )


def _line(line: KernelLine, iterations: int) -> Iterator[str]:
    yield _cells(
        (
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
    )
    yield from _cut(printable(line.name))
    yield from fold(decision_of(line), "      ", indent=8)


def _cut(name: str) -> Iterator[str]:
    """Yield the name of a kernel in a line; the middle of a long name is left out."""
    room = TEXT_WIDTH - 4
    cut = name if len(name) <= room else f"{name[: room - 23]}...{name[-20:]}"
    yield f"    {cut}"


def decision_of(line: KernelLine) -> str:
    """Return which row chose the kernel of *line*, or why there is no row."""
    if line.row is not None:
        kind = kind_of(line.keys[0])
        question = kind.ingredients(line.keys[0]).get(kind.question or "", "")
        label = f"{kind.brief(line.keys[0])} {question}".rstrip()
        partly = "" if line.is_whole else " (the row has the matmul's own time only)"
        return f"{label}: {line.row.winner.short}{partly}"
    text = _MEANS[line.reason] if line.reason is not None else ""
    if len(line.keys) == 1:
        return f"{line.keys[0]}: {text}"
    if line.keys:
        return f"one of {len(line.keys)} decisions: {'; '.join(line.keys)}"
    return text


def _shares(profile: Profile) -> Iterator[str]:
    """Yield how much of the device's time has a row, and why the rest has none."""
    yield "device time by decision"
    for reason in _REASONS:
        share = profile.share_of(reason)
        if share > 0 or reason in (None, Reason.UNTRACED):
            text = "a row of the table" if reason is None else _MEANS[reason]
            yield from fold(f"{share:>6.1%}  {text}", "  ", indent=10)
    known = dict.fromkeys(Known, 0.0)
    for line in profile.lines:
        known[line.known] += line.total_us
    parts = ", ".join(
        f"by {how.value} {_part(us, profile.device_us)}"
        for how, us in known.items()
        if us > 0 and how is not Known.NOTHING
    )
    if parts:
        yield from fold(f"known {parts}", "  ", indent=4)
    if profile.outside_us > 0:
        yield f"  {digits(profile.outside_us)} us of kernels are outside of any marked call"
    if profile.skipped:
        yield f"  {counted(profile.skipped, 'event')} of the device without a time left out"


def _drifts(profile: Profile) -> Iterator[str]:
    lines = drifted_lines(profile)
    if lines:
        yield f"drifted: not within 10 % of the row's time ({len(lines)})"
    for line in lines:
        assert line.ratio is not None
        text = f"{times(line.ratio)} of {digits(line.row_us)} us: {line.keys[0]}"
        yield from fold(text, "  ", indent=4)


def _missed(profile: Profile, costs: Sequence[MissedCost], top: int) -> Iterator[str]:
    if costs:
        yield f"worth building, by what they cost ({len(costs)}; --misses-out FILE)"
    for cost in costs[:top]:
        text = f"{_part(cost.us, profile.device_us)} {digits(cost.us)} us: {cost.key}"
        yield from fold(text, "  ", indent=4)


def _part(us: float, whole: float) -> str:
    return f"{us / whole:.1%}" if whole else ABSENT


def _cells(cells: Sequence[str], widths: Sequence[int] = _WIDTHS) -> str:
    padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return " ".join(padded).rstrip()


def document(profile: Profile) -> dict[str, Any]:
    """Return *profile* as JSON values."""
    return {
        "schema": PROFILE_SCHEMA,
        "device": profile.device,
        "is_cpu": profile.is_cpu,
        "table": profile.digest,
        "clock_mhz": profile.clock_mhz,
        "peaks": None if profile.peaks is None else asdict(profile.peaks),
        "assumptions": list(profile.assumptions),
        "device_us": profile.device_us,
        "outside_us": profile.outside_us,
        "skipped": profile.skipped,
        "shares": {
            "row" if reason is None else reason.value: profile.share_of(reason)
            for reason in _REASONS
        },
        "buckets": [_bucket_document(bucket) for bucket in profile.buckets],
        "drifted": [line.keys[0] for line in drifted_lines(profile)],
        "missed": [asdict(cost) for cost in missed_costs(profile)],
        "doubts": [asdict(doubt) for doubt in review_profile(profile)],
    }


def _bucket_document(bucket: BucketProfile) -> dict[str, Any]:
    gaps = bucket.gaps
    return {
        "bucket": bucket.bucket,
        "iterations": bucket.iterations,
        "window_us": gaps.window,
        "busy_us": gaps.busy,
        "host_gap_us": gaps.host,
        "device_gap_us": gaps.device,
        "overlapped_us": gaps.overlapped,
        "kernels": [_line_document(line) for line in bucket.lines],
    }


def _line_document(line: KernelLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "known_by": line.known.value,
        "no_row": line.reason,
        "keys": list(line.keys),
        "winner": None if line.row is None else str(line.row.winner),
        "count": len(line.us),
        "total_us": line.total_us,
        "mean_us": line.mean_us,
        "median_us": Samples(line.us).median,
        "share": line.share,
        "dtype": line.dtype or None,
        "flops": line.flops,
        "bytes": line.moved,
        "tflops": line.tflops,
        "gbps": line.gbps,
        "peak_share": line.peak_share,
        "limit": line.limit,
        "row_us": line.row_us,
        "ratio": line.ratio,
        "is_whole": line.is_whole,
    }


def spell_differences(found: Sequence[KernelDifference], top: int) -> Iterator[str]:
    """Yield for each bucket the change of a call, then *top* changes of its kernels."""
    if not found:
        yield "the traces have no bucket in common"
    shown = 0
    for each in found:
        if not each.subject:
            shown = 0
            yield ""
            yield f"{each.bucket or 'the whole trace'}: device time of a call"
            yield _cells(
                ("before us", "after us", "change us", "ratio", "95 % interval"),
                _DIFFERENCE_WIDTHS,
            )
            yield f"{_figures(each)}  all kernels"
        elif shown < top:
            shown += 1
            yield _figures(each)
            yield from fold(each.subject, "    ", indent=6)
            if each.before != each.after:
                names = (" + ".join(side) or "nothing" for side in (each.before, each.after))
                yield from fold(" -> ".join(names), "      ", indent=8)


def _figures(each: KernelDifference) -> str:
    interval = ABSENT
    if each.interval is not None:
        interval = f"{each.interval[0]:.2f} to {each.interval[1]:.2f}"
        interval += "" if each.is_certain else " ~"
    sign = "+" if each.added_us > 0 else "-" if each.added_us < 0 else ""
    change = f"{sign}{digits(abs(each.added_us))}"
    return _cells(
        (digits(each.before_us), digits(each.after_us), change, times(each.ratio), interval),
        _DIFFERENCE_WIDTHS,
    )


def differences_document(found: Sequence[KernelDifference]) -> list[dict[str, Any]]:
    """Return *found* as JSON values."""
    return [
        {
            **asdict(each),
            "subject": each.subject or None,
            "added_us": each.added_us,
            "ratio": each.ratio,
            "is_certain": each.is_certain,
        }
        for each in found
    ]
