"""`suggest`: the buckets that add the least padded work for a histogram of sizes, as it is read."""

from __future__ import annotations

import codecs
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal

import msgspec

from warmup.core.buckets import MAX_SIZE
from warmup.core.errors import SettingsError

MAX_SUGGESTED: Final = 64
_Partition = tuple[tuple[int, ...], int]  # the ends of intervals, and their cost


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


def partitions(works: Sequence[int], counts: Sequence[int], most: int) -> list[_Partition]:
    """Return the best ends of 1, 2 ... *most* intervals, each with its cost."""
    # An interval that ends at *j* costs ``works[j]`` for each count in it; *works* ascend strictly.
    # With ``total[i]`` the counts before *i*, the best cost of *k* intervals that end at *j* is ::
    # best[k][j] = works[j] * total[j + 1] + min over i of best[k-1][i-1] - total[i] * works[j] The
    # terms under the minimum are lines in ``works[j]`` whose slopes fall with *i*, evaluated at
    # rising points. So their lower envelope is a queue, which each line enters and leaves once: O(n
    # * most) in all, in exact integers: P. Brucker, "Efficient algorithms for some path
    # partitioning problems", Discrete Applied Mathematics 62 (1995), the convex hull trick.
    total = [0, *accumulate(counts)]
    last = len(works) - 1
    best = [work * count for work, count in zip(works, total[1:], strict=True)]
    partitions_by_k: list[_Partition] = [((last,), best[-1])]
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
    """Return the best costs of k + 1 intervals by their end, and where the last interval starts."""
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


MAX_LINE_BYTES: Final = 256
MAX_SIZES: Final = 100_000
MAX_REQUESTS: Final = 10**12
_HEADERS: Final = {b"size", b"size,count", b'"size"', b'"size","count"'}
_LINES: Final = 'write SIZE, SIZE,COUNT or {"size": SIZE, "count": COUNT} on each line'


class _Observed(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_REQUESTS)] = 1


def read_histogram(source: str | Path | BinaryIO | Mapping[int, int]) -> dict[int, int]:
    """Return the count of each size in *source*: a file's path, a binary stream, or a mapping."""
    # A line is ``SIZE``, ``SIZE,COUNT`` or ``{"size": SIZE, "count": COUNT}``, the first also the
    # header ``size`` or ``size,count``. A missing count is 1, counts of a size add up, and blank
    # lines and counts of 0 are left out. Memory is bounded. A SettingsError names the line.
    if isinstance(source, Mapping):
        entries = ((f"{n}: {count}", {"size": n, "count": count}) for n, count in source.items())
        return _add_up(entries, "the histogram", f"sizes are 1 to {MAX_SIZE}")
    if not isinstance(source, (str, Path)):
        return _add_up(_lines(source), "--histogram standard input", _LINES)
    try:
        with Path(source).open("rb") as stream:
            return _add_up(_lines(stream), f"--histogram {source}", _LINES)
    except OSError as error:
        raise SettingsError(
            f"--histogram {source}: {error.strerror}", "name a readable file, or - for stdin"
        ) from error


def _add_up(
    pairs: Iterable[tuple[str, bytes | dict[str, int]]], name: str, advice: str
) -> dict[int, int]:
    counts: dict[int, int] = {}
    for place, entry in pairs:
        try:
            if isinstance(entry, bytes):
                observed = _of_line(entry)
            else:
                observed = msgspec.convert(entry, _Observed)
        except ValueError as error:
            problem = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
            raise SettingsError(f"{name}, {place}: {problem}", advice) from error
        if observed.count:
            counts[observed.size] = counts.get(observed.size, 0) + observed.count
        if len(counts) > MAX_SIZES:
            raise SettingsError(
                f"{name}, {place}: more than {MAX_SIZES} different sizes",
                "round sizes up before counting",
            )
    if not counts:
        raise SettingsError(f"{name} has no size", advice)
    return counts


def _lines(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    is_first = True
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), start=1):
        text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip()
        if text and not (is_first and text.lower().replace(b" ", b"") in _HEADERS):
            yield f"line {number}", text
        is_first = is_first and not text


def _of_line(line: bytes) -> _Observed:
    if len(line) > MAX_LINE_BYTES - 2:  # its end may be a carriage return
        raise ValueError(f"longer than {MAX_LINE_BYTES - 2} bytes")
    if line.startswith(b"{"):
        return msgspec.json.decode(line, type=_Observed)
    cells = [cell.strip().removeprefix('"').removesuffix('"') for cell in line.decode().split(",")]
    if len(cells) > 2:  # noqa: PLR2004  size and count
        raise ValueError(f"{len(cells)} columns instead of size,count")
    named = dict(zip(("size", "count"), cells, strict=False))
    return msgspec.convert(named, _Observed, strict=False)
