"""`ConvolutionProblem`: a convolution by the library or a template; row kind ``convolution``.

    convolution x=8x3x56x56 w=64x3x7x7 stride=2x2 padding=3x3 groups=1 bf16 a=last b=last out=last

``a``, ``b`` and ``out`` are the layouts of input, weight and output: channels ``first`` or ``last``
without gaps, or ``any(...)`` with the strides. ``fp32`` is there for float32 only. What follows a
convolution is not part of its key: its candidates are timed alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.roofline import Work, item_bytes
from warmup.core.rows import Family
from warmup.keys.gemm import multiplied_in
from warmup.keys.kind import Kind, Problem

_TENSOR: Final = r"[0-9]+(?:x[0-9]+){2,4}"  # of one to three dims, batch and channels
_WINDOW: Final = r"[0-9]+(?:x[0-9]+){0,2}"
_SAMPLES: Final = re.compile(r"\bx=[0-9]+")
_CHANNELS: Final = r"(?:first|last|any\([0-9,]+\))"


def _work(ingredients: Mapping[str, str]) -> Work | None:
    # A single stride or padding, as torch allows, is that of every dim.
    x, w, stride, padding = (
        [int(size) for size in ingredients[name].split("x")]
        for name in ("x", "w", "stride", "padding")
    )
    stride, padding = (each * (len(w) - 2 if len(each) == 1 else 1) for each in (stride, padding))
    out = [
        (size + 2 * margin - kernel) // step + 1
        for size, kernel, step, margin in zip(x[2:], w[2:], stride, padding, strict=True)
    ]
    written = x[0] * w[0] * math.prod(out)
    moved = (math.prod(x) + math.prod(w) + written) * item_bytes(ingredients["dtype"])
    return Work(multiplied_in(ingredients), 2 * written * math.prod(w[1:]), moved)


def _weight_of(key: str) -> str:
    """Leave out the number of samples, and layouts of samples, which one sample leaves open."""
    kept = (word for word in key.split(" ") if word.partition("=")[0] not in {"a", "out"})
    return _SAMPLES.sub("x=", " ".join(kept))


CONVOLUTION: Final = Kind(
    name="convolution",
    pattern=re.compile(
        rf"convolution x={_TENSOR} w={_TENSOR} stride={_WINDOW} padding={_WINDOW} groups=[0-9]+"
        rf" [a-z][a-z0-9_]* a={_CHANNELS} b={_CHANNELS} out={_CHANNELS}(?: fp32=[a-z0-9]+)?"
    ),
    words=("kind", "dtype"),
    fixed=1,
    families=frozenset({Family.EXTERN, Family.TEMPLATE}),
    hooks="warmup.inductor.selections:Convolutions",
    sites=frozenset({"select:convolution"}),
    work=_work,
    hidden=frozenset({"a", "b", "out"}),
    weight=_weight_of,
)


@dataclass(frozen=True, kw_only=True)
class ConvolutionProblem(Problem):
    """A convolution of the input ``x`` with the weight ``w``, without bias.

    ``x``, ``w`` and ``out`` have the sizes and strides of each tensor. ``fp32`` is the precision in
    which float32 is multiplied, None for other dtypes.
    """

    kind = CONVOLUTION

    x: tuple[Sequence[int], Sequence[int]]
    w: tuple[Sequence[int], Sequence[int]]
    out: tuple[Sequence[int], Sequence[int]]
    stride: Sequence[int]
    padding: Sequence[int]
    groups: int
    dtype: str
    fp32: str | None = None

    def _spell(self) -> str:
        words = ["convolution", f"x={_times(self.x[0])}", f"w={_times(self.w[0])}"]
        words += [f"stride={_times(self.stride)}", f"padding={_times(self.padding)}"]
        words += [f"groups={self.groups}", self.dtype]
        named = {"a": self.x, "b": self.w, "out": self.out}
        words += [f"{name}={layout_of(*tensor)}" for name, tensor in named.items()]
        words += [f"fp32={self.fp32}"] if self.fp32 else []
        return " ".join(words)


def layout_of(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Return ``first``, ``last`` or the strides; those of dims of size 1 do not count."""
    channels_last = [0, *range(2, len(sizes)), 1]
    for name, order in (("first", range(len(sizes))), ("last", channels_last)):
        expected = {
            dim: math.prod(sizes[inner] for inner in list(order)[place + 1 :])
            for place, dim in enumerate(order)
        }
        if all(size == 1 or strides[dim] == expected[dim] for dim, size in enumerate(sizes)):
            return name
    return f"any({','.join(map(str, strides))})"


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
