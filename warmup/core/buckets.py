"""`Bucket`: sizes that a table is built for, and `InputSpec`, a model input; both as text too."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from warmup.core.errors import SettingsError

MAX_BUCKETS = 4096
MAX_SIZE = 2**31 - 1
_MAX_SIZE_DIGITS = 10
_SHOWN_SIZES = 5
_DIM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INPUT_SPEC = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=\[(?P<dims>[^\]]*)\](?::(?P<dtype>\w+))?"
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A combination of dim sizes: ``(("batch", 1), ("seqlen", 560))``.

    ``lows`` has the smallest size of each dim with a range, which ends at the dim's size in
    ``sizes``.
    """

    sizes: tuple[tuple[str, int], ...]
    lows: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        lows = dict(self.lows)
        return ",".join(
            f"{name}={lows[name]}..{size}" if name in lows else f"{name}={size}"
            for name, size in self.sizes
        )

    def size_of(self, name: str) -> int | None:
        return dict(self.sizes).get(name)

    def at(self, sizes: Mapping[str, int]) -> Bucket:
        """Return a bucket without ranges that has *sizes*, and this one's size for other dims."""
        return Bucket(tuple((name, sizes.get(name, size)) for name, size in self.sizes))


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A model input: the name of the forward argument, its dims (names or sizes) and its dtype.

    Integers are random from 0 to ``below`` - 1. ``inferred_from`` says where an input was taken
    from that nobody named.
    """

    name: str
    dims: tuple[str | int, ...]
    dtype: str | None
    below: int = 128
    inferred_from: str = ""

    def __str__(self) -> str:
        dtype = f":{self.dtype}" if self.dtype else ""
        return f"{self.name}=[{','.join(map(str, self.dims))}]{dtype}"

    def shape(self, bucket: Bucket) -> tuple[int, ...]:
        """Return the shape of this input in *bucket*; a SettingsError where a dim has no size."""
        shape: list[int] = []
        for dim in self.dims:
            size = dim if isinstance(dim, int) else bucket.size_of(dim)
            if size is None:
                raise SettingsError(
                    f"--input {self.name}: nothing binds the dim {dim!r}",
                    f'bind it with --dims "{dim}=1,8" or --seqlens (which binds seqlen)',
                )
            shape.append(size)
        return tuple(shape)


def parse_sizes(text: str, source: str) -> tuple[int, ...]:
    """Return the sizes in text such as ``560,1024``, ranges expanded, in the order given."""
    # ``4..8192`` is 4, 8, 16 and so on, doubled up to 8192; ``128..4096:128`` goes in steps of 128.
    # The end of a range is always its last size. A SettingsError names *source*: no size, a size
    # twice, a range above its end, or more than `MAX_BUCKETS` sizes.
    sizes: list[int] = []
    for word in text.split(","):
        span = _span(word.strip(), source)
        _check_count(len(sizes) + len(span))
        sizes += span
    repeated = sorted(size for size, times in Counter(sizes).items() if times > 1)
    if repeated:
        shown = ", ".join(map(str, repeated[:_SHOWN_SIZES]))
        verb = "is" if len(repeated) == 1 else "are"
        more = f" and {len(repeated) - _SHOWN_SIZES} more" if repeated[_SHOWN_SIZES:] else ""
        raise SettingsError(
            f"{source}: {shown}{more} {verb} given more than once",
            "name each size once: 4..16 already holds 4 and 16",
        )
    return tuple(sizes)


def _span(word: str, source: str) -> Sequence[int]:
    first, is_range, rest = word.partition("..")
    last, has_step, step = rest.partition(":")
    if not is_range:
        return (_checked_size(first, word, source),)
    start, end = _checked_size(first, word, source), _checked_size(last, word, source)
    if start > end:
        raise SettingsError(
            f"{source}: the range {word!r} starts above its end", "write its smaller size first"
        )
    if has_step:
        below: Sequence[int] = range(start, end, _checked_size(step, word, source))
        _check_count(len(below) + 1)
    else:
        doublings = (start << times for times in itertools.count())
        below = tuple(itertools.takewhile(lambda size: size < end, doublings))
    return (*below, end)


def _checked_size(part: str, word: str, source: str) -> int:
    size = _size(part.strip())
    if size is None:
        within = "" if part == word else f" in {word!r}"
        digits = part.strip().strip("0")  # of 0 none are left
        limit = f" below {MAX_SIZE + 1}" if digits.isascii() and digits.isdigit() else ""
        raise SettingsError(
            f"{source}: {part.strip()!r}{within} is not a positive integer{limit}",
            "give sizes or ranges, such as 560,1024 or 4..8192 or 128..4096:128",
        )
    return size


def parse_buckets(
    seqlens: str | Sequence[int] | None, dims: str | Sequence[str] | None
) -> tuple[Bucket, ...]:
    """Return every combination of the sizes in ``--seqlens`` and ``--dims``, last dim fastest.

    With several *dims* the combinations of each follow each other, each bucket once. A
    SettingsError: neither is given, a dim is given twice, or there are too many buckets.
    """
    if seqlens is not None and not isinstance(seqlens, str):
        seqlens = ",".join(map(str, seqlens))
    groups: Sequence[str | None] = [dims] if dims is None or isinstance(dims, str) else dims
    combinations = (_combinations(seqlens, group) for group in groups or [None])
    buckets = dict.fromkeys(itertools.chain.from_iterable(combinations))
    _check_count(len(buckets))
    return tuple(buckets)


def _combinations(seqlens: str | None, dims: str | None) -> tuple[Bucket, ...]:
    bound: dict[str, tuple[int, ...]] = {}
    for part in dims.split(";") if dims else []:
        name, equals, sizes = part.partition("=")
        if not equals or _DIM_NAME.fullmatch(name.strip()) is None:
            raise SettingsError(
                f"--dims: {part.strip()!r} does not bind a dim",
                'write --dims "batch=1,8;seqlen=560,1024"',
            )
        if name.strip() in bound:
            raise SettingsError(f"--dims: {name.strip()!r} is bound twice", "bind each dim once")
        bound[name.strip()] = parse_sizes(sizes, f"--dims {name.strip()}")
    if seqlens is not None:
        if "seqlen" in bound:
            raise SettingsError("seqlen is bound by --seqlens and by --dims", "use one of the two")
        bound["seqlen"] = parse_sizes(seqlens, "--seqlens")
    if not bound:
        raise SettingsError("no bucket is given", "give --seqlens 560,1024,2048 or --dims")
    _check_count(math.prod(map(len, bound.values())))
    names = tuple(bound)
    return tuple(
        Bucket(tuple(zip(names, combination, strict=True)))
        for combination in itertools.product(*bound.values())
    )


def _check_count(count: int) -> None:
    if count > MAX_BUCKETS:
        raise SettingsError(
            f"{count} buckets are more than {MAX_BUCKETS}", "tune fewer sizes at once"
        )


def describe_count(buckets: Sequence[Bucket]) -> str:
    """Return ``8 buckets (batch 2 x seqlen 4), of at most 4096`` for *buckets*."""
    sizes: dict[str, set[int]] = {}
    for bucket in buckets:
        for name, size in bucket.sizes:
            sizes.setdefault(name, set()).add(size)
    is_product = len(sizes) > 1 and math.prod(map(len, sizes.values())) == len(buckets)
    factors = " x ".join(f"{name} {len(dim_sizes)}" for name, dim_sizes in sizes.items())
    count = "1 bucket" if len(buckets) == 1 else f"{len(buckets)} buckets"
    return f"{count}{f' ({factors})' if is_product else ''}, of at most {MAX_BUCKETS}"


def parse_inputs(texts: Sequence[str]) -> tuple[InputSpec, ...]:
    """Return the inputs in texts such as ``ids=[batch,seqlen]:i64``, or a SettingsError."""
    specs: list[InputSpec] = []
    for text in texts:
        match = _INPUT_SPEC.fullmatch(text.strip())
        dims = [dim.strip() for dim in match["dims"].split(",")] if match else []
        if match is None or not all(
            _DIM_NAME.fullmatch(dim) or _size(dim) is not None
            for dim in dims
            if dim or len(dims) > 1
        ):
            raise SettingsError(
                f"--input: {text!r} is not NAME=[DIM,...]:DTYPE",
                'write --input "hidden_states=[seqlen,3420]:bf16"',
            )
        if any(spec.name == match["name"] for spec in specs):
            raise SettingsError(
                f"--input: {match['name']!r} is given twice", "name each input once"
            )
        shape = tuple(_size(dim) or dim for dim in dims if dim)
        specs.append(InputSpec(match["name"], shape, match["dtype"]))
    return tuple(specs)


def _size(word: str) -> int | None:
    if not (word.isascii() and word.isdigit() and len(word) <= _MAX_SIZE_DIGITS):
        return None
    return int(word) if 0 < int(word) <= MAX_SIZE else None


# `DynamicDim`: a dynamic dim of a model's input, and the `Interval` of sizes of each bucket.

DimNames = Mapping[int, str] | Sequence[str | int | None]
SizeList = str | Sequence[int]


class ShapePolicy(StrEnum):
    """How sizes between two buckets are served."""

    RANGE = "range"
    PAD = "pad"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """A dynamic dim of an input: dim number ``dim`` of the tensor at ``path``.

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
    """Return the dynamic dims in *dims*, the argument of `warmup.compile`, or a SettingsError.

    For example ``{"hidden_states": {1: "seqlen"}, "batch.mask": ("batch", "seqlen")}``. Keys are
    paths, their parts joined by dots. Values name dims by number; in a sequence, numbers and None
    stand for dims that are not dynamic.
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
    """Return the bucket sizes of each name in *dims*, ascending, or a SettingsError.

    *buckets* has them by name; with a single name it may be the sizes themselves.
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
    texts = {
        name: each if isinstance(each, str) else ",".join(map(str, each))
        for name, each in buckets.items()
    }
    sizes = {name: _ascending(name, parse_sizes(texts[name], f"buckets {name}")) for name in names}
    _check_count(math.prod(map(len, sizes.values())))
    return sizes


def _ascending(name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    for before, after in itertools.pairwise(sizes):
        if after <= before:
            raise SettingsError(
                f"buckets {name}: {after} follows {before}",
                "list sizes in ascending order: each bucket serves what lies above the one before",
            )
    return sizes


def intervals_of(sizes: Sequence[int]) -> tuple[Interval, ...]:
    """Return the intervals that end at the ascending *sizes* and cover 1 up to the last of them.

    Size 1 has its own: torch.compile makes another artifact for it, whatever the range (0/1
    specialisation).
    """
    highs = [size for size in sizes if size > 1]
    lows = [2, *(size + 1 for size in highs[:-1])]
    return (Interval(1, 1), *map(Interval, lows, highs))


def with_ranges(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return *buckets* with ranges, each from the bucket before it; size 1 has its own bucket.

    A SettingsError: sizes do not ascend, or *buckets* are not every combination of them.
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
    intervals = [
        [(name, interval) for interval in intervals_of(_ascending(name, tuple(sizes)))]
        for name, sizes in seen.items()
    ]
    return tuple(
        Bucket(
            tuple((name, interval.high) for name, interval in combination),
            tuple((name, i.low) for name, i in combination if i.low < i.high),
        )
        for combination in itertools.product(*intervals)
    )
