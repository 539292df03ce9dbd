"""Axes: the dynamic dims of a model's inputs, and the sizes that each bucket serves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from warmup.buckets.bucket import MAX_BUCKETS, Bucket, parse_sizes
from warmup.core.errors import SettingsError

Names = Mapping[int, str] | Sequence[str | int | None]
SizeList = str | Sequence[int]


class ShapePolicy(StrEnum):
    """How sizes are served that are no bucket."""

    RANGE = "range"
    PAD = "pad"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """One dynamic dim of one input.

    ``path`` leads to the tensor: the name of an argument of forward, then keys of mappings and
    positions in sequences. Axes of one ``name`` have one size in each call.
    """

    name: str
    path: tuple[str | int, ...]
    dim: int

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}[{self.dim}]={self.name}"


@dataclass(frozen=True, slots=True)
class Interval:
    """The sizes from ``low`` to ``high``, both included, of which ``high`` is the bucket's."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.high) if self.low == self.high else f"{self.low}..{self.high}"


def parse_axes(dims: Mapping[str, Names]) -> tuple[DynamicDim, ...]:
    """Return the axes in ``{"hidden_states": {1: "seqlen"}, "batch.mask": ("batch", "seqlen")}``.

    Keys are paths, their parts joined by dots. Values name dims by position; in a sequence numbers
    and None are dims that stay as they are.

    Raises:
        SettingsError: there is no axis, or a name or a position is none.
    """
    axes: list[DynamicDim] = []
    for path, names in dims.items():
        named = names if isinstance(names, Mapping) else dict(enumerate(names))
        parts = tuple(int(part) if part.isdecimal() else part for part in path.split("."))
        for dim, name in named.items():
            if isinstance(names, Mapping) or isinstance(name, str):
                axes.append(_axis(path, parts, dim, name))
    if not axes:
        raise SettingsError(
            "dims names no dynamic dim", 'give dims={"hidden_states": {1: "seqlen"}}'
        )
    return tuple(axes)


def _axis(path: str, parts: tuple[str | int, ...], dim: object, name: object) -> DynamicDim:
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
        raise SettingsError(f"dims {path!r}: {dim!r} is no dim", "count dims from 0")
    if not isinstance(name, str) or not name.isidentifier() or not isinstance(parts[0], str):
        raise SettingsError(
            f"dims {path!r}: {name!r} cannot be its name", 'write {"hidden_states": {1: "seqlen"}}'
        )
    return DynamicDim(name, parts, dim)


def parse_ladders(
    axes: Sequence[DynamicDim], buckets: SizeList | Mapping[str, SizeList]
) -> dict[str, tuple[int, ...]]:
    """Return the bucket sizes of each dim that *axes* name, ascending.

    Where they name one dim alone *buckets* may be its sizes themselves.

    Raises:
        SettingsError: sizes do not ascend, a dim has none, or there are too many buckets.
    """
    names = tuple(dict.fromkeys(axis.name for axis in axes))
    if not isinstance(buckets, Mapping):
        if len(names) > 1:
            raise SettingsError(
                f"buckets are given without names, and there are the dims {', '.join(names)}",
                f'give buckets={{"{names[0]}": "16,256", ...}}',
            )
        buckets = {names[0]: buckets}
    if unknown := [*(buckets.keys() ^ set(names))]:
        raise SettingsError(
            f"buckets and dims do not name the same dims ({', '.join(sorted(unknown))})",
            "name each dynamic dim once in both",
        )
    ladders = {name: _ladder(name, buckets[name]) for name in names}
    count = 1
    for ladder in ladders.values():
        count *= len(ladder)
    if count > MAX_BUCKETS:
        raise SettingsError(f"{count} buckets are more than {MAX_BUCKETS}", "use fewer sizes")
    return ladders


def _ladder(name: str, sizes: SizeList) -> tuple[int, ...]:
    text = sizes if isinstance(sizes, str) else ",".join(map(str, sizes))
    return _ascending(name, parse_sizes(text, f"buckets {name}"))


def _ascending(name: str, ladder: tuple[int, ...]) -> tuple[int, ...]:
    for before, after in itertools.pairwise(ladder):
        if after <= before:
            raise SettingsError(
                f"buckets {name}: {after} follows {before}",
                "list sizes in ascending order: each bucket serves what lies above the one before",
            )
    return ladder


def ladders_of(buckets: Sequence[Bucket]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each dim of *buckets*, which ascend and of which they are the product.

    Raises:
        SettingsError: sizes do not ascend, or *buckets* are not every combination of them.
    """
    ladders: dict[str, dict[int, None]] = {}
    for bucket in buckets:
        for name, size in bucket.sizes:
            ladders.setdefault(name, {})[size] = None
    count = math.prod(map(len, ladders.values()))
    if count != len(buckets) or any(len(bucket.sizes) != len(ladders) for bucket in buckets):
        raise SettingsError(
            f"{len(buckets)} buckets are not every combination of their sizes, {count}",
            "ranges need a product of dims: give --dims once, or build exact buckets",
        )
    return {name: _ascending(name, tuple(sizes)) for name, sizes in ladders.items()}


def intervals_of(ladder: Sequence[int]) -> tuple[Interval, ...]:
    """Return the intervals that end at the sizes of *ladder*, together all from 1 to the last.

    Size 1 has an interval of its own: torch.compile makes another artifact for it, whatever the
    range of the dim.
    """
    above = [size for size in ladder if size > 1]
    lows = [2, *(size + 1 for size in above[:-1])]
    return (Interval(1, 1), *map(Interval, lows, above))


def widened(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return *buckets* that serve all sizes down to the bucket before each, and size 1 apart.

    Raises:
        SettingsError: as `ladders_of`.
    """
    ladders = ladders_of(buckets)
    steps = [[(name, one) for one in intervals_of(ladder)] for name, ladder in ladders.items()]
    return tuple(
        Bucket(
            tuple((name, one.high) for name, one in some),
            tuple((name, one.low) for name, one in some if one.low < one.high),
        )
        for some in itertools.product(*steps)
    )
