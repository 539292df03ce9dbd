"""`html_page`: a page of HTML that stands alone, and the pieces that pages are made of.

A page has no script and loads nothing, which its content security policy also forbids. Every text
in it is escaped: tables, traces and logs are not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from warmup.core.error_text import printable

_CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_PAGE_STYLE: Final = """
:root { color-scheme: light dark; --bar: #4477aa55; --line: #8886; --bad: #b3260a;
  --faint: color-mix(in srgb, CanvasText 65%, Canvas); }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a70; --bar: #6699cc88; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem;
  background: Canvas; color: CanvasText; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; color: var(--faint); }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; }
th { vertical-align: bottom; }
th.text, td.text { text-align: left; white-space: normal; min-width: 9rem;
  overflow-wrap: anywhere; }
td.bar { background: linear-gradient(var(--bar), var(--bar)) no-repeat left / var(--part); }
code { font-size: .85em; } small, .faint { color: var(--faint); } .bad { color: var(--bad); }
pre { overflow-x: auto; font-size: .8rem; overflow-wrap: normal; }
@media (max-width: 45rem) { table, tbody { display: block; } thead { display: none; }
  caption { display: block; }
  tr { display: flex; flex-wrap: wrap; gap: 0 1rem; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  td { border: 0; padding: 0; text-align: left; }
  td.text { flex-basis: 100%; order: -1; min-width: 0; }
  td::before { content: attr(data-name) " "; font-size: .8em; color: var(--faint); }
  td.text::before { content: none; } td.bar { padding-right: .5rem; } }
"""


@dataclass(frozen=True, slots=True)
class HtmlCell:
    """A cell of a table: a text, a second line under it, and a bar for a share from 0 to 1.

    A bad value has another colour, and code a fixed width.
    """

    text: str
    below: str = ""
    share: float | None = None
    is_bad: bool = False
    is_code: bool = False


def html_page(title: str, body: Iterable[str]) -> str:
    """Return the page of that *title* with the pieces of *body*, which are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CONTENT_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_PAGE_STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def html_text(text: str) -> str:
    """Return *text* as HTML that shows it, control characters as escapes."""
    return escape(printable(text))


def html_heading(text: str, level: int = 2) -> str:
    """Return *text* as a heading of that *level*."""
    return f"<h{level}>{html_text(text)}</h{level}>\n"


def html_paragraph(text: str) -> str:
    """Return *text* as a paragraph."""
    return f"<p>{html_text(text)}</p>\n"


def html_lines(lines: Iterable[str]) -> str:
    """Return *lines* in a fixed width, as a terminal shows them."""
    text = "\n".join(map(html_text, lines))
    return f"<pre>{text}</pre>\n"


def html_table(
    head: Sequence[str],
    rows: Iterable[Sequence[HtmlCell]],
    *,
    texts: Iterable[int] = (),
    caption: str = "",
) -> Iterator[str]:
    """Yield a table of *rows* under *head*; the columns *texts* are flush left and may wrap.

    On a narrow screen each row is a paragraph: its texts, then its figures with their names.
    """
    columns = frozenset(texts)
    yield "<div class=wide><table>"
    if caption:
        yield f"<caption>{html_text(caption)}</caption>"
    yield "<thead><tr>"
    for number, name in enumerate(head):
        mark = " class=text" if number in columns else ""
        yield f"<th{mark} scope=col>{html_text(name)}</th>"
    yield "</tr></thead>\n<tbody>"
    for row in rows:
        yield "<tr>"
        for number, (name, cell) in enumerate(zip(head, row, strict=True)):
            yield _cell(name, cell, is_text=number in columns)
        yield "</tr>\n"
    yield "</tbody></table></div>\n"


def _cell(name: str, cell: HtmlCell, *, is_text: bool) -> str:
    names = [
        *(["text"] if is_text else []),
        *(["bar"] if cell.share is not None else []),
        *(["bad"] if cell.is_bad else []),
    ]
    mark = f' class="{" ".join(names)}"' if names else ""
    part = None if cell.share is None else min(max(cell.share, 0), 1)
    share = "" if part is None else f' style="--part: {part:.1%} 100%"'
    text = html_text(cell.text)
    shown = f"<code>{text}</code>" if cell.is_code else text
    below = f"<br><small>{html_text(cell.below)}</small>" if cell.below else ""
    return f'<td data-name="{html_text(name)}"{mark}{share}>{shown}{below}</td>'
