"""`page`: a profile as one page of HTML that stands alone, for a browser or a phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from warmup.cli.output import digits, percent, times
from warmup.cli.profile_render import decision_of, spell
from warmup.diagnostics.profile.profile import BucketProfile, KernelLine, Profile

_EVERY_KERNEL: Final = 10**6
_PAGE_HEAD: Final = (
    *("share", "us per call", "calls", "TFLOP/s", "GB/s", "of peak", "limit", "row us", "ratio"),
    "kernel and decision",
)
_PAGE_STYLE: Final = """
:root { color-scheme: light dark; --bar: #4477aa55; --line: #8886; --faint: #888; --bad: #cc3311; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem;
  background: Canvas; color: CanvasText; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; }
th:last-child, td:last-child { text-align: left; white-space: normal; min-width: 18rem;
  overflow-wrap: anywhere; }
td:first-child { background: linear-gradient(var(--bar), var(--bar)) no-repeat left / var(--part);
}
code { font-size: .85em; } small { color: var(--faint); } .bad { color: var(--bad); }
pre { overflow-x: auto; font-size: .8rem; }
"""


def page(profile: Profile, name: str) -> str:
    """Return the page on *profile*, of the trace *name*: no script, nothing from elsewhere."""
    body = "".join(_body(profile, name))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{_PAGE_STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _body(profile: Profile, name: str) -> Iterator[str]:
    yield f"<h1>{escape(name)}</h1>\n<p>{escape(profile.device)}</p>\n"
    for bucket in profile.buckets:
        yield from _bucket(bucket)
    yield "<h2>As text</h2>\n<pre>"
    yield escape("\n".join(spell(profile, _EVERY_KERNEL)))
    yield "</pre>\n"


def _bucket(bucket: BucketProfile) -> Iterator[str]:
    each = max(bucket.iterations, 1)
    gaps = bucket.gaps
    yield f"<h2>{escape(bucket.bucket or 'the whole trace')}</h2>\n"
    yield (
        f"<p>{bucket.iterations} calls of {digits(gaps.window / each)} us: the device worked "
        f"{digits(gaps.busy / each)} us, waited {digits(gaps.host / each)} us for the host and "
        f"{digits(gaps.device / each)} us between kernels.</p>\n<div class=wide><table><tr>"
    )
    yield from (f"<th>{head}</th>" for head in _PAGE_HEAD)
    yield "</tr>\n"
    for line in bucket.lines:
        yield from _row(line, each)
    yield "</table></div>\n"


def _row(line: KernelLine, iterations: int) -> Iterator[str]:
    cells: Sequence[str] = (
        digits(line.total_us / iterations),
        f"{len(line.us) / iterations:g}",
        digits(line.tflops),
        digits(line.gbps),
        percent(line.peak_share),
        line.limit or "-",
        digits(line.row_us),
    )
    yield f'<tr><td style="--part: {line.share:.1%} 100%">{line.share:.1%}</td>'
    yield from (f"<td>{escape(cell)}</td>" for cell in cells)
    mark = " class=bad" if line.has_drifted else ""
    yield f"<td{mark}>{times(line.ratio)}{'' if line.is_whole else '+'}</td>"
    text = escape(decision_of(line))
    yield f"<td><code>{escape(line.name)}</code><br><small>{text}</small></td></tr>\n"
