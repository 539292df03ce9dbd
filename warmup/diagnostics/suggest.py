"""`suggest`: the buckets that add the least padded work for a histogram of sizes, as it is read."""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeGuard

from warmup.core.buckets import MAX_SIZE
from warmup.core.errors import SettingsError

MAX_SUGGESTED: Final = 64


class Cost(StrEnum):
    """How the work of a request grows with its size."""

    LINEAR = "linear"
    QUADRATIC = "quadratic"

    def of(self, size: int) -> int:
        """Return the work of one request of *size*, in units of a request of size 1."""
        return size if self is Cost.LINEAR else size * size


@dataclass(frozen=True, slots=True)
class Pick:
    """The best buckets of a given number, ascending, and the padded work of all requests."""

    sizes: tuple[int, ...]
    work: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The suggested buckets for a histogram: ``curve`` has the best pick of 1, 2, 3 ... buckets.

    ``requests`` is the number of requests, ``observed`` that of their different sizes, which go
    from ``smallest`` to ``largest``; ``work`` is the work of all requests without padding.
    """

    requests: int
    observed: int
    smallest: int
    largest: int
    work: int
    curve: tuple[Pick, ...]

    @property
    def best(self) -> Pick:
        return self.curve[-1]

    def padded(self, pick: Pick) -> float:
        """Return the padded work of *pick* over the work without padding; 1.0 is no padding."""
        return pick.work / self.work


def suggest(
    histogram: str | Path | BinaryIO | Mapping[int, int],
    *,
    max_buckets: int,
    multiple: int = 1,
    cost: Literal["linear", "quadratic"] = "linear",
) -> Suggestion:
    """Return the buckets, at most *max_buckets*, for which padding adds the least work.

    Buckets are observed sizes, rounded up to a multiple of *multiple*: any other bucket could be
    lowered to such a size and serve the same requests. *histogram* is a file for `read_histogram`,
    or the count of each size. Fewer are returned where more would not reduce the padded work.

    Raises:
        SettingsError: the histogram cannot be read or is empty, or an argument is out of bounds.
    """
    if not 1 <= max_buckets <= MAX_SUGGESTED:
        raise SettingsError(
            f"{max_buckets} buckets cannot be suggested", f"ask for 1 to {MAX_SUGGESTED}"
        )
    if not 1 <= multiple <= MAX_SIZE:
        raise SettingsError(f"{multiple} is no multiple", f"give 1 to {MAX_SIZE}")
    if cost not in tuple(Cost):
        raise SettingsError(f"the cost {cost!r} is unknown", f"use any of {', '.join(Cost)}")
    if isinstance(histogram, Mapping):
        counts = check_histogram(histogram)
    else:
        counts = read_histogram(histogram)
    requests: dict[int, int] = {}
    for size in sorted(counts):
        bucket = -(-size // multiple) * multiple
        requests[bucket] = requests.get(bucket, 0) + counts[size]
    if (largest := max(requests)) > MAX_SIZE:
        raise SettingsError(
            f"the size {max(counts)} rounded up to a multiple of {multiple} is {largest}",
            f"sizes end at {MAX_SIZE}",
        )
    growth = Cost(cost)
    buckets = tuple(requests)
    works = [growth.of(bucket) for bucket in buckets]
    return Suggestion(
        requests=sum(counts.values()),
        observed=len(counts),
        smallest=min(counts),
        largest=max(counts),
        work=sum(growth.of(size) * count for size, count in counts.items()),
        curve=tuple(
            Pick(tuple(buckets[index] for index in ends), work)
            for ends, work in partitions(works, list(requests.values()), max_buckets)
        ),
    )


def partitions(
    works: Sequence[int], counts: Sequence[int], most: int
) -> list[tuple[tuple[int, ...], int]]:
    """Return the best ends of 1, 2 ... *most* intervals, each with its cost.

    An interval that ends at *j* costs ``works[j]`` for each count in it; *works* ascend strictly.
    With ``total[i]`` the counts before *i*, the best cost of *k* intervals that end at *j* is ::

        best[k][j] = works[j] * total[j + 1] + min over i of best[k-1][i-1] - total[i] * works[j]

    The terms under the minimum are lines in ``works[j]`` whose slopes fall with *i*, evaluated at
    rising points. So their lower envelope is a queue, which each line enters and leaves once:
    O(n * most) in all, in exact integers: P. Brucker, "Efficient algorithms for some path
    partitioning problems", Discrete Applied Mathematics 62 (1995), the convex hull trick.
    """
    total = [0, *accumulate(counts)]
    last = len(works) - 1
    best = [work * count for work, count in zip(works, total[1:], strict=True)]
    partitions_by_k: list[tuple[tuple[int, ...], int]] = [((last,), best[-1])]
    starts_by_k: list[array[int]] = []
    for k in range(1, min(most, len(works))):
        best, starts = _extend(best, works, total, k)
        starts_by_k.append(starts)
        ends = [last]
        for last_starts in reversed(starts_by_k):
            ends.append(last_starts[ends[-1]] - 1)
        partitions_by_k.append((tuple(reversed(ends)), best[-1]))
    return partitions_by_k


def _extend(
    best: Sequence[int], works: Sequence[int], total: Sequence[int], k: int
) -> tuple[list[int], array[int]]:
    """Return the best costs of k + 1 intervals by their end, and where the last interval starts.

    The first *k* elements are placeholders: no k + 1 intervals end there.
    """
    costs, starts = [0] * k, array("i", [0]) * k
    # The envelope: for each possible start of the last interval the least work from which its line
    # is the lowest, the start, and the cost and the number of requests before it.
    lines: deque[tuple[int, int, int, int]] = deque()
    positions = zip(best[k - 1 :], total[k:], works[k:], total[k + 1 :], strict=False)
    for j, (cost, before, work, until) in enumerate(positions, start=k):
        crossing = 0
        while lines:
            lowest_from, _, line_cost, line_total = lines[-1]
            crossing = -((line_cost - cost) // (before - line_total))  # rounded up
            if crossing > lowest_from:
                break
            lines.pop()
        lines.append((crossing if lines else 0, j, cost, before))
        while len(lines) > 1 and lines[1][0] <= work:
            lines.popleft()
        _, start, line_cost, line_total = lines[0]
        starts.append(start)
        costs.append(line_cost + work * (until - line_total))
    return costs, starts


MAX_LINES: Final = 10_000_000
MAX_LINE_BYTES: Final = 256
MAX_SIZES: Final = 100_000
MAX_REQUESTS: Final = 10**12
_MAX_COUNT_DIGITS = 13
_SHOWN_LETTERS = 40
_HEADERS = {"size", "size,count", '"size"', '"size","count"'}
_LINES = 'write SIZE, SIZE,COUNT or {"size": SIZE, "count": COUNT} on each line'


def read_histogram(source: str | Path | BinaryIO) -> dict[int, int]:
    """Return the count of each size in *source*, the path of a file or a binary stream.

    Each line is ``SIZE``, ``SIZE,COUNT`` or ``{"size": SIZE, "count": COUNT}``; the first may be
    the header ``size`` or ``size,count``, and blank lines are skipped. A missing count is 1, counts
    of the same size add up, and sizes with the count 0 are left out. Memory is bounded.

    Raises:
        SettingsError: the file cannot be read, a line has another form, a limit is exceeded, or no
            size has a count above 0; the text names the line.
    """
    if not isinstance(source, (str, Path)):
        return _add_up(source, "standard input")
    try:
        with Path(source).open("rb") as stream:
            return _add_up(stream, str(source))
    except OSError as error:
        raise SettingsError(
            f"--histogram {source}: {error.strerror}", "name a readable file, or - for stdin"
        ) from error


def check_histogram(counts: Mapping[int, int]) -> dict[int, int]:
    """Return *counts*, a histogram from a program, without the sizes whose count is 0.

    Raises:
        SettingsError: a size or a count is invalid, there are too many sizes, or none is left.
    """
    for size, count in counts.items():
        if not _is_within(size, 1, MAX_SIZE) or not _is_within(count, 0, MAX_REQUESTS):
            raise SettingsError(
                f"the histogram's {_quoted(size)}: {_quoted(count)} is no size with its count",
                f"sizes are 1 to {MAX_SIZE}, counts 0 to {MAX_REQUESTS}",
            )
    positive = {size: count for size, count in counts.items() if count}
    if not positive:
        raise SettingsError("the histogram has no size", "count at least one request")
    if len(positive) > MAX_SIZES:
        raise SettingsError(
            f"the histogram has more than {MAX_SIZES} sizes", "round sizes up before counting"
        )
    return positive


def _add_up(stream: BinaryIO, name: str) -> dict[int, int]:
    counts: dict[int, int] = {}
    may_be_header = True
    for number, line in enumerate(_lines(stream, name), start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if text and not (may_be_header and text.lower().replace(" ", "") in _HEADERS):
                size, count = _object(text) if text.startswith("{") else _columns(text)
                if count:
                    counts[size] = counts.get(size, 0) + count
        except ValueError as error:
            problem = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
            raise SettingsError(f"--histogram {name}, line {number}: {problem}", _LINES) from error
        may_be_header = may_be_header and not text
        if len(counts) > MAX_SIZES:
            raise SettingsError(
                f"--histogram {name}, line {number}: more than {MAX_SIZES} different sizes",
                "round sizes up before counting",
            )
    if not counts:
        raise SettingsError(f"--histogram {name}: it has no size", _LINES)
    return counts


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), start=1):
        if number > MAX_LINES:
            raise SettingsError(
                f"--histogram {name}: more than {MAX_LINES} lines",
                "count equal sizes first, as SIZE,COUNT",
            )
        if len(line) > MAX_LINE_BYTES:
            raise SettingsError(
                f"--histogram {name}, line {number}: longer than {MAX_LINE_BYTES} bytes", _LINES
            )
        yield line


def _columns(text: str) -> tuple[int, int]:
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) > 2:  # noqa: PLR2004  size and count
        raise ValueError(f"{len(cells)} columns instead of size,count")
    return _checked(*map(_number, cells))


def _number(cell: str) -> object:
    text = cell[1:-1] if cell.startswith('"') and cell.endswith('"') else cell
    is_number = text.isascii() and text.removeprefix("-").isdigit()
    return int(text) if is_number and len(text) <= _MAX_COUNT_DIGITS else text


def _object(text: str) -> tuple[int, int]:
    try:
        fields = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{_quoted(text)} is not JSON: {error.msg}") from error
    if "size" not in fields or not fields.keys() <= {"size", "count"}:
        raise ValueError(f"{_quoted(text)} has other fields than size and count")
    return _checked(**fields)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _checked(size: object, count: object = 1) -> tuple[int, int]:
    if not _is_within(size, 1, MAX_SIZE):
        raise ValueError(f"the size {_quoted(size)} is not an integer from 1 to {MAX_SIZE}")
    if not _is_within(count, 0, MAX_REQUESTS):
        raise ValueError(f"the count {_quoted(count)} is not an integer from 0 to {MAX_REQUESTS}")
    return size, count


def _is_within(value: object, low: int, high: int) -> TypeGuard[int]:
    return type(value) is int and low <= value <= high  # bool is a subclass of int


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."
