"""`DynamicDim`: a dynamic dim of a model's input, and the `Interval` of sizes of each bucket.

Settings of `warmup.compile` as typed values; nothing here looks at a model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from warmup.buckets.bucket import MAX_BUCKETS, Bucket, parse_sizes
from warmup.core.errors import SettingsError

DimNames = Mapping[int, str] | Sequence[str | int | None]
SizeList = str | Sequence[int]


class ShapePolicy(StrEnum):
    """How sizes between two buckets are served."""

    RANGE = "range"
    PAD = "pad"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """A dynamic dim of one input: dim number ``dim`` of the tensor at ``path``.

    ``path`` starts with the name of an argument of forward; keys of mappings and positions in
    sequences follow. Dynamic dims of the same ``name`` have the same size in each call.
    """

    name: str
    path: tuple[str | int, ...]
    dim: int

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}[{self.dim}]={self.name}"


@dataclass(frozen=True, slots=True)
class Interval:
    """The sizes from ``low`` to ``high``, both inclusive; ``high`` is the size of the bucket."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.high) if self.low == self.high else f"{self.low}..{self.high}"


def parse_dynamic_dims(dims: Mapping[str, DimNames]) -> tuple[DynamicDim, ...]:
    """Return the dynamic dims in *dims*, the argument of `warmup.compile`.

    For example ``{"hidden_states": {1: "seqlen"}, "batch.mask": ("batch", "seqlen")}``. Keys are
    paths, their parts joined by dots. Values name dims by number; in a sequence, numbers and None
    stand for dims that are not dynamic.

    Raises:
        SettingsError: there is no dynamic dim, or a name or a number cannot be used.
    """
    dynamic_dims: list[DynamicDim] = []
    for path, names in dims.items():
        named = names if isinstance(names, Mapping) else dict(enumerate(names))
        parts = tuple(int(part) if part.isdecimal() else part for part in path.split("."))
        for dim, name in named.items():
            if isinstance(names, Mapping) or isinstance(name, str):
                dynamic_dims.append(_dynamic_dim(path, parts, dim, name))
    if not dynamic_dims:
        raise SettingsError(
            "dims names no dynamic dim", 'give dims={"hidden_states": {1: "seqlen"}}'
        )
    return tuple(dynamic_dims)


def _dynamic_dim(path: str, parts: tuple[str | int, ...], dim: object, name: object) -> DynamicDim:
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
        raise SettingsError(f"dims {path!r}: {dim!r} is no dim", "count dims from 0")
    if not isinstance(name, str) or not name.isidentifier() or not isinstance(parts[0], str):
        raise SettingsError(
            f"dims {path!r}: {name!r} cannot be its name", 'write {"hidden_states": {1: "seqlen"}}'
        )
    return DynamicDim(name, parts, dim)


def parse_bucket_sizes(
    dims: Sequence[DynamicDim], buckets: SizeList | Mapping[str, SizeList]
) -> dict[str, tuple[int, ...]]:
    """Return the bucket sizes of each name in *dims*, ascending.

    *buckets* has them by name; with a single name it may be the sizes themselves.

    Raises:
        SettingsError: sizes do not ascend, names differ, or there are too many buckets.
    """
    names = tuple(dict.fromkeys(dim.name for dim in dims))
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
    sizes = {name: _parse_ascending(name, buckets[name]) for name in names}
    count = math.prod(map(len, sizes.values()))
    if count > MAX_BUCKETS:
        raise SettingsError(f"{count} buckets are more than {MAX_BUCKETS}", "use fewer sizes")
    return sizes


def _parse_ascending(name: str, sizes: SizeList) -> tuple[int, ...]:
    text = sizes if isinstance(sizes, str) else ",".join(map(str, sizes))
    return _ascending(name, parse_sizes(text, f"buckets {name}"))


def _ascending(name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    for before, after in itertools.pairwise(sizes):
        if after <= before:
            raise SettingsError(
                f"buckets {name}: {after} follows {before}",
                "list sizes in ascending order: each bucket serves what lies above the one before",
            )
    return sizes


def sizes_by_dim(buckets: Sequence[Bucket]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each dim of *buckets*, ascending.

    Raises:
        SettingsError: sizes do not ascend, or *buckets* are not every combination of them.
    """
    seen: dict[str, dict[int, None]] = {}
    for bucket in buckets:
        for name, size in bucket.sizes:
            seen.setdefault(name, {})[size] = None
    count = math.prod(map(len, seen.values()))
    if count != len(buckets) or any(len(bucket.sizes) != len(seen) for bucket in buckets):
        raise SettingsError(
            f"{len(buckets)} buckets are not every combination of their sizes, {count}",
            "ranges need every combination: give --dims once, or build exact buckets",
        )
    return {name: _ascending(name, tuple(sizes)) for name, sizes in seen.items()}


def intervals_of(sizes: Sequence[int]) -> tuple[Interval, ...]:
    """Return the intervals that end at the ascending *sizes* and cover 1 up to the last of them.

    Size 1 has an interval of its own: torch.compile makes another artifact for it, whatever the
    range of the dim (0/1 specialisation).
    """
    highs = [size for size in sizes if size > 1]
    lows = [2, *(size + 1 for size in highs[:-1])]
    return (Interval(1, 1), *map(Interval, lows, highs))


def with_ranges(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return *buckets* with ranges, each from the bucket before it; size 1 has its own bucket.

    Raises:
        SettingsError: sizes do not ascend, or *buckets* are not every combination of them.
    """
    intervals = [
        [(name, interval) for interval in intervals_of(sizes)]
        for name, sizes in sizes_by_dim(buckets).items()
    ]
    return tuple(
        Bucket(
            tuple((name, interval.high) for name, interval in combination),
            tuple((name, i.low) for name, i in combination if i.low < i.high),
        )
        for combination in itertools.product(*intervals)
    )
