"""Text, grids, JSON and files as every command writes them.

Reports go to stdout, messages to stderr. Logs and tables are untrusted: whatever in a line could
drive a terminal is printed as an escape.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TextIO, TypeVar

from warmup.bench.compare import decimals_of, rounded
from warmup.cli.options import is_quiet
from warmup.core.buckets import Bucket
from warmup.core.device import CallCost
from warmup.core.phases import PhaseSeconds
from warmup.core.roofline import Peaks
from warmup.core.rows import Winner
from warmup.core.text import printable

PrintedReport = TypeVar("PrintedReport")

TEXT_WIDTH: Final = 80  # columns of text that is folded and not on a terminal
_DEEPEST: Final = 8  # columns by which later lines of a cell are indented
ABSENT: Final = "-"
PHASES_PAGE: Final = "docs/explanation/start.md"
MEANINGS: Final = {
    "hits": "answered by a row of the table",
    "misses": "no row answered",
    "uncovered": "decided by no row kind",
    "foreign": "compiled under another table or none",
    "silent": "asked the table nothing",
    "mismatch": "the table is for another device or runtime, and was not applied",
}


def print_report(
    report: PrintedReport,
    spell: Callable[[PrintedReport], Iterable[str]],
    document: Callable[[PrintedReport], Any] | None = None,
    *,
    as_json: bool,
) -> None:
    """Print *report* on stdout: as JSON its *document*, else `record`, or the lines of *spell*."""
    if as_json:
        print_json((document or record)(report))
        return
    for line in spell(report):
        print_line(line)


def record(value: Any, *properties: str, without: Collection[str] = ()) -> Any:
    """Return *value*, a report, as JSON values: a dataclass is an object of its public fields.

    An object has *properties* too, and lacks the fields *without*. A bucket is an object of its
    sizes, a winner its text, a set a sorted list.
    """
    if isinstance(value, Bucket):
        return dict(value.sizes)
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Winner)):
        named = [each.name for each in dataclasses.fields(value) if each.name not in without]
        public = (name for name in (*named, *properties) if not name.startswith("_"))
        return {name: record(getattr(value, name)) for name in public}
    if isinstance(value, Mapping):
        return {str(name): record(each) for name, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(value)
    if isinstance(value, (tuple, list)):
        return [record(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def print_json(document: Any, file: TextIO | None = None) -> None:
    stream = file or sys.stdout
    json.dump(document, stream, indent=2, sort_keys=True)
    stream.write("\n")


def print_line(line: str, file: TextIO | None = None) -> None:
    (file or sys.stdout).write(f"{printable(line)}\n")


def say(line: str) -> None:
    """Print *line* on stderr, unless the command was told to be quiet."""
    if not is_quiet():
        complain(line)


def complain(line: str) -> None:
    print_line(line, sys.stderr)


def terminal_width() -> int | None:
    """Return the columns of the terminal on stdout; None where stdout is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fold(
    text: str,
    head: str = "",
    *,
    indent: int | None = None,
    width: int | None = TEXT_WIDTH,
    breaks_words: bool = False,
) -> list[str]:
    """Return *head* and *text* in lines of at most *width* columns; words and paths stay whole.

    Later lines are indented by *indent* columns, or under the text. Without a *width* there is one
    line.
    """
    return textwrap.wrap(
        printable(text),
        width=width or sys.maxsize,
        initial_indent=head,
        subsequent_indent=" " * (len(head) if indent is None else indent),
        break_long_words=breaks_words,
        break_on_hyphens=False,
    )


def wrapped(text: str, head: str = "", *, indent: int | None = 2) -> list[str]:
    """Return `fold` for the terminal on stdout; one line where stdout is a file or a pipe."""
    return fold(text, head, indent=indent, width=terminal_width())


def spell_phases(part: str, seconds: PhaseSeconds, head: str = "  ") -> list[str]:
    words = ", ".join(f"{phase.label} {taken:.2f}" for phase, taken in seconds.items())
    return fold(f"{part} {sum(seconds.values()):.2f}: {words}", head, indent=len(head) + 2)


def grid(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int, gap: int = 2
) -> Iterator[str]:
    """Yield *rows* under *head* in columns, the first *texts* flush left, the others flush right.

    A row is one line. Where the terminal is too narrow for that, the texts but the last stand on a
    line of their own above the others.
    """
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    width = terminal_width()
    is_wide = width is None or sum(widths) + gap * (len(widths) - 1) <= width
    above = 0 if is_wide else texts - 1
    for line in lines:
        yield from fold_cells((" " * gap).join(line[:above]), "", width)
        cells = [
            cell.ljust(widths[column]) if column < texts else cell.rjust(widths[column])
            for column, cell in enumerate(line)
        ]
        yield ("  " * bool(above) + (" " * gap).join(cells[above:])).rstrip()


def fold_cells(text: str, head: str, width: int | None) -> list[str]:
    indent = min(len(head), _DEEPEST) or 4
    return fold(text, head, indent=indent, width=width, breaks_words=True)


def digits(value: float | None) -> str:
    """Return *value* with four digits, and never fewer than stand before the point."""
    return ABSENT if value is None else f"{rounded(value):.{decimals_of(value)}f}"


def percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"


def times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{ratio:.2f}x"


def meanings(*words: str, page: str) -> str:
    return f"{'; '.join(f'{word}: {MEANINGS[word]}' for word in words)} ({page})"


def versions(torch: str | None, triton: str | None) -> str:
    return f"torch {torch}, triton {triton or 'none'}"


def timing(launch: str, l2: str) -> str:
    return f"launch {launch}, L2 {l2}"


def spell_cost(cost: CallCost) -> str:
    limit = "the host limits it" if cost.is_host_limited else "the device limits it"
    return f"host {digits(cost.host_us)} us, device {digits(cost.device_us)} us: {limit}"


def spell_peaks(peaks: Peaks, dtypes: Iterable[str]) -> str:
    rates = {name: peaks.tflops[name] for name in sorted(dtypes) if name in peaks.tflops}
    texts = {name: f"{rate:.0f}" if rate >= 10 else digits(rate) for name, rate in rates.items()}  # noqa: PLR2004  two digits
    of_dtypes = "".join(f", {text} TFLOP/s in {name}" for name, text in texts.items())
    clock = f" at {peaks.clock_mhz} MHz" if peaks.clock_mhz is not None else ""
    return f"measured peaks{clock}: {peaks.gbps:.0f} GB/s{of_dtypes} ({peaks.measured})"
