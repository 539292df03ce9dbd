"""`suggest`: the buckets that cost the least padding for observed sizes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final

from warmup.buckets.bucket import MAX_SIZE
from warmup.buckets.histogram import check_histogram, read_histogram
from warmup.core.errors import SettingsError

MAX_SUGGESTED: Final = 64


class Cost(StrEnum):
    """How the work of a request grows with its size."""

    LINEAR = "linear"
    QUADRATIC = "quadratic"

    def of(self, size: int) -> int:
        """Return the work of one request of *size*, in units of one of size 1."""
        return size if self is Cost.LINEAR else size * size


@dataclass(frozen=True, slots=True)
class Pick:
    """The best buckets of their number, ascending, and the work of all requests padded to them."""

    sizes: tuple[int, ...]
    work: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What was picked for a histogram. ``curve`` has the best pick of 1, 2, 3 ... buckets.

    ``observed`` is the number of different sizes, from ``smallest`` to ``largest``, of
    ``requests`` in all; ``work`` is what they take without padding.
    """

    requests: int
    observed: int
    smallest: int
    largest: int
    work: int
    curve: tuple[Pick, ...]

    @property
    def best(self) -> Pick:
        """The pick with the least padding, which has the most buckets."""
        return self.curve[-1]

    def padded(self, pick: Pick) -> float:
        """Return the padded work of *pick* over the work without padding; 1.0 is no padding."""
        return pick.work / self.work


def suggest(
    histogram: str | Path | BinaryIO | Mapping[int, int],
    *,
    max_buckets: int,
    multiple: int = 1,
    cost: str = Cost.LINEAR,
) -> Suggestion:
    """Return the buckets, at most *max_buckets*, for which padding adds the least work.

    Each size is served by the smallest bucket that holds it, so the last bucket is the largest
    size observed. Buckets are observed sizes, rounded up to a multiple of *multiple*: any other
    bucket could be lowered to one of those and serve the same sizes. *histogram* is a file that
    `warmup.buckets.histogram.read_histogram` reads, or the count of each size. There are fewer than
    *max_buckets* where fewer are enough for no padding but that of *multiple*.

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
    served: dict[int, int] = {}
    for size in sorted(counts):
        bucket = -(-size // multiple) * multiple
        served[bucket] = served.get(bucket, 0) + counts[size]
    if (largest := max(served)) > MAX_SIZE:
        raise SettingsError(
            f"the size {max(counts)} rounded up to a multiple of {multiple} is {largest}",
            f"sizes end at {MAX_SIZE}",
        )
    grows = Cost(cost)
    buckets = tuple(served)
    works = [grows.of(bucket) for bucket in buckets]
    return Suggestion(
        requests=sum(counts.values()),
        observed=len(counts),
        smallest=min(counts),
        largest=max(counts),
        work=sum(grows.of(size) * count for size, count in counts.items()),
        curve=tuple(
            Pick(tuple(buckets[index] for index in chosen), work)
            for chosen, work in partitions(works, list(served.values()), max_buckets)
        ),
    )


def partitions(
    works: Sequence[int], counts: Sequence[int], most: int
) -> list[tuple[tuple[int, ...], int]]:
    """Return the best ends of 1, 2 ... *most* intervals, and what each of these costs.

    An interval that ends at *j* costs ``works[j]`` for each count in it; *works* ascend strictly.
    Intervals are as many as there are positions where *most* is more.

    With ``total[i]`` the counts before *i*, the best cost of *k* intervals that end at *j* is ::

        best[k][j] = works[j] * total[j + 1] + min over i of best[k-1][i-1] - total[i] * works[j]

    The terms under the minimum are lines in ``works[j]`` whose slopes fall with *i*, asked at
    rising points, so that their lower envelope is kept as a queue: each line enters and leaves it
    once, which makes O(n) for each *k* and O(n * most) in all, in exact integers. The method is
    P. Brucker's, "Efficient algorithms for some path partitioning problems", Discrete Applied
    Mathematics 62 (1995), known as the convex hull trick.
    """
    total = [0, *accumulate(counts)]
    ends = len(works)
    best = [work * of_all for work, of_all in zip(works, total[1:], strict=True)]
    found: list[tuple[tuple[int, ...], int]] = [((ends - 1,), best[-1])]
    starts: list[array[int]] = []
    for k in range(1, min(most, ends)):
        best, start = _extend(best, works, total, k)
        starts.append(start)
        chosen = [ends - 1]
        for of_layer in reversed(starts):
            chosen.append(of_layer[chosen[-1]] - 1)
        found.append((tuple(reversed(chosen)), best[-1]))
    return found


def _extend(
    best: Sequence[int], works: Sequence[int], total: Sequence[int], k: int
) -> tuple[list[int], array[int]]:
    """Return the best costs with one interval more than *k*, and where the last one starts.

    Positions before *k* have no such intervals; what is returned of them means nothing.
    """
    longer, start = [0] * k, array("i", [0]) * k
    # The envelope: where lines start, their terms, and the least work from which each is lowest.
    lines: list[int] = []
    costs: list[int] = []
    befores: list[int] = []
    since: list[int] = []
    first, last = 0, -1
    of_ends = zip(best[k - 1 :], total[k:], works[k:], total[k + 1 :], strict=False)
    for j, (cost, before, work, until) in enumerate(of_ends, start=k):
        enters = 0
        while last >= first:
            enters = -((costs[last] - cost) // (before - befores[last]))  # rounded up
            if enters > since[last]:
                break
            del lines[last], costs[last], befores[last], since[last]
            last -= 1
        lines.append(j)
        costs.append(cost)
        befores.append(before)
        since.append(enters)
        last += 1
        while first < last and since[first + 1] <= work:
            first += 1
        start.append(lines[first])
        longer.append(costs[first] + work * (until - befores[first]))
    return longer, start
