"""`page`: a profile as one page of HTML that stands alone, for a browser or a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warmup.cli.html_page import (
    HtmlCell,
    html_heading,
    html_lines,
    html_page,
    html_paragraph,
    html_table,
)
from warmup.cli.output import digits, percent, times
from warmup.cli.profile_render import decision_of, spell
from warmup.diagnostics.profile.profile import BucketProfile, KernelLine, Profile

_EVERY_KERNEL: Final = 10**6
_PAGE_HEAD: Final = (
    *("share", "us per call", "calls", "TFLOP/s", "GB/s", "of peak", "limit", "row us", "ratio"),
    "kernel and decision",
)


def page(profile: Profile, name: str) -> str:
    """Return the page on *profile*, of the trace *name*: no script, nothing from elsewhere."""
    return html_page(name, _body(profile, name))


def bucket_part(bucket: BucketProfile, level: int = 2) -> Iterator[str]:
    """Yield a bucket of a profile: what the device did, and a line for each kernel."""
    each = max(bucket.iterations, 1)
    gaps = bucket.gaps
    yield html_heading(bucket.bucket or "the whole trace", level)
    yield html_paragraph(
        f"{bucket.iterations} calls of {digits(gaps.window / each)} us: the device worked "
        f"{digits(gaps.busy / each)} us, waited {digits(gaps.host / each)} us for the host and "
        f"{digits(gaps.device / each)} us between kernels."
    )
    rows = (_row(line, each) for line in bucket.lines)
    yield from html_table(_PAGE_HEAD, rows, texts=(len(_PAGE_HEAD) - 1,))


def _body(profile: Profile, name: str) -> Iterator[str]:
    yield html_heading(name, 1)
    yield html_paragraph(profile.device)
    for bucket in profile.buckets:
        yield from bucket_part(bucket)
    yield html_heading("As text")
    yield html_lines(spell(profile, _EVERY_KERNEL))


def _row(line: KernelLine, iterations: int) -> tuple[HtmlCell, ...]:
    plain = (
        digits(line.total_us / iterations),
        f"{len(line.us) / iterations:g}",
        digits(line.tflops),
        digits(line.gbps),
        percent(line.peak_share),
        line.limit or "-",
        digits(line.row_us),
    )
    ratio = f"{times(line.ratio)}{'' if line.is_whole else '+'}"
    return (
        HtmlCell(f"{line.share:.1%}", share=line.share),
        *map(HtmlCell, plain),
        HtmlCell(ratio, is_bad=line.has_drifted),
        HtmlCell(line.name, decision_of(line), is_code=True),
    )
