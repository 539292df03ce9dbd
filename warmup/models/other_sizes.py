"""`OtherSizes`: a second call of a bucket that is a range, which shows what is dynamic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warmup.inductor.layers.compiler import Ranges
from warmup.inductor.layers.form import Path
from warmup.models.proved_layers import NotSharedError


@dataclass(frozen=True, slots=True)
class OtherSizes:
    """A call of the same bucket with other sizes, for artifacts that serve ranges.

    ``ranges`` has by name of the dim its size in the first call and in this one, and the smallest
    and the largest size of the bucket.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    ranges: Mapping[str, tuple[int, int, int, int]]

    def ranges_of(
        self, layer: str, shapes: Mapping[Path, tuple[int, ...]], others: Mapping[Path, Any]
    ) -> Ranges:
        """Return the range of each dim that differs between *shapes* and *others*.

        Raises:
            NotSharedError: a size differs that is not that of a dynamic dim itself.
        """
        if {path: len(shape) for path, shape in shapes.items()} != {
            path: len(shape) for path, shape in others.items()
        }:
            raise NotSharedError(f"{layer} has other arguments at another size")
        known = {(first, second): ends for first, second, *ends in self.ranges.values()}
        found: dict[Path, dict[int, tuple[int, int]]] = {}
        for path, shape in shapes.items():
            for dim, pair in enumerate(zip(shape, others[path], strict=True)):
                if pair[0] == pair[1]:
                    continue
                if pair not in known:
                    raise NotSharedError(
                        f"{layer} has an argument of size {pair[0]}, which is no dynamic dim itself"
                    )
                low, high = known[pair]
                found.setdefault(path, {})[dim] = (low, high)
        return found
