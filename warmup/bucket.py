"""Buckets: the sizes a table is built for, and the inputs made from them. Floor 0: stdlib only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from warmup.errors import SettingsError

MAX_BUCKETS = 4096
_MAX_SIZE = 2**31 - 1
_MAX_DIGITS = 10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INPUT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=\[(?P<dims>[^\]]*)\](?::(?P<dtype>\w+))?")


@dataclass(frozen=True, slots=True)
class Bucket:
    """One combination of dim sizes: ``(("batch", 1), ("seqlen", 560))``."""

    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes)

    def size_of(self, name: str) -> int | None:
        """Return the size bound to the dim *name*, or None when nothing binds it."""
        return dict(self.sizes).get(name)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One model input: the forward argument it feeds, its dims (names or sizes) and its dtype."""

    name: str
    dims: tuple[str | int, ...]
    dtype: str | None

    def shape(self, bucket: Bucket) -> tuple[int, ...]:
        """Return the concrete shape of this input in *bucket*.

        Raises:
            SettingsError: a named dim is bound by nothing.
        """
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
    """Return the sizes in ``"560,1024,2048"``, in the order given.

    Raises:
        SettingsError: not positive integers, or one repeated; *source* names the flag.
    """
    sizes: list[int] = []
    for word in text.split(","):
        size = _size(word.strip())
        if size is None:
            raise SettingsError(
                f"{source}: {word.strip()!r} is not a positive integer",
                f"give sizes separated by commas, such as {source} 560,1024,2048",
            )
        sizes.append(size)
    repeated = sorted({size for size in sizes if sizes.count(size) > 1})
    if repeated:
        raise SettingsError(
            f"{source}: {', '.join(map(str, repeated))} is given more than once",
            "name each size once",
        )
    return tuple(sizes)


def parse_buckets(
    seqlens: str | Sequence[int] | None, dims: str | Sequence[str] | None
) -> tuple[Bucket, ...]:
    """Return the product of all dims bound by ``--seqlens`` and ``--dims``, last dim fastest.

    *seqlens* may be the sizes themselves. Of several *dims* the products follow each other, each
    bucket once.

    Raises:
        SettingsError: neither is given, a dim is bound twice, or there are too many buckets.
    """
    if seqlens is not None and not isinstance(seqlens, str):
        seqlens = ",".join(map(str, seqlens))
    groups: Sequence[str | None] = [dims] if dims is None or isinstance(dims, str) else dims
    products = (_product(seqlens, group) for group in groups or [None])
    found = dict.fromkeys(bucket for product in products for bucket in product)
    _check_count(len(found))
    return tuple(found)


def _product(seqlens: str | None, dims: str | None) -> tuple[Bucket, ...]:
    bound: dict[str, tuple[int, ...]] = {}
    for part in dims.split(";") if dims else []:
        name, equals, sizes = part.partition("=")
        if not equals or _NAME.fullmatch(name.strip()) is None:
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
    count = 1
    for sizes_of_dim in bound.values():
        count *= len(sizes_of_dim)
    _check_count(count)
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


def parse_inputs(texts: Sequence[str]) -> tuple[InputSpec, ...]:
    """Return the inputs spelled ``hidden_states=[seqlen,3420]:bf16``.

    Raises:
        SettingsError: one is spelled otherwise, or two feed the same argument.
    """
    specs: list[InputSpec] = []
    for text in texts:
        match = _INPUT.fullmatch(text.strip())
        dims = [dim.strip() for dim in match["dims"].split(",")] if match else []
        if match is None or not all(
            _NAME.fullmatch(dim) or _size(dim) is not None for dim in dims if dim or len(dims) > 1
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
    """Return the size that *word* spells, None when it spells none from 1 to 2**31 - 1."""
    if not (word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS):
        return None
    return int(word) if 0 < int(word) <= _MAX_SIZE else None
