"""Row kinds ``pad``, an unaligned GEMM that inductor may pad, and ``weight``, padded Linears.

    pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d free=a

Without a row, inductor's pad_mm pass times the GEMM against the GEMM with its operands padded to
aligned sizes, in every mode of torch.compile (torch/_inductor/fx_passes/pad_mm.py).

`Structure` is of Linears whose weights may be padded ahead of time:

    weight chain m=560 in=1280,1280 features=3420 out=1280 bf16 bias=111 via=mul(silu(p0),p1)
    weight n m=1024 in=768 features=50257 bf16 bias=0
    weight k m=1024 features=588 out=1024 bf16 bias=1

The features are the dim that is padded: the output of a Linear (``n``), the input of a Linear
(``k``), or the output of some Linears and the input of others (``chain``). ``in`` has the other
size of each Linear that produces the features, ``out`` that of each Linear that consumes them.
``bias`` has a digit for each of these Linears, in this order. ``via`` is the text form of the
operations in between, on the outputs ``p0``, ``p1`` of the producing Linears.

The winner has the number of features to pad to; the unpadded number is the library default. Rows
of the form ``n`` may have different winners in one model: the unpadded weight is the beginning of
the padded one, so that both can be used without a copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.errors import ProblemError
from warmup.core.roofline import Work, item_bytes
from warmup.core.rows import Family, Winner
from warmup.keys.gemm import DIM, LAYOUT, RANGE, Dim, Layout, ProductProblem, multiplied_in
from warmup.keys.kind import Kind

PADDED: Final = Winner(Family.PAD, "padded")
AS_IS: Final = Winner(Family.PAD, "as_is")


def _work(ingredients: Mapping[str, str]) -> Work | None:
    sizes = [Dim.read(ingredients.get(name, "1")).high for name in ("batch", "m", "n", "k")]
    if None in sizes:
        return None
    batch, m, n, k = (size or 0 for size in sizes)
    moved = batch * (m * k + k * n + m * n) * item_bytes(ingredients["dtype"])
    return Work(multiplied_in(ingredients), 2 * batch * m * n * k, moved)


PAD: Final = Kind(
    name="pad",
    pattern=re.compile(
        rf"pad (?:mm|addmm|bmm)(?: batch={DIM})? m={DIM} n={DIM} k={DIM} [a-z][a-z0-9_]*"
        rf" a={LAYOUT} b={LAYOUT}(?: bias=[a-z0-9]+)?(?: free=(?:a|b|ab))?(?: fp32=[a-z0-9]+)?"
    ),
    words=("kind", "op", "dtype"),
    fixed=2,
    families=frozenset({Family.PAD}),
    nearest_by=("m",),
    ranges=("m", "n", "k"),
    neutral=AS_IS,  # a padded GEMM has another key
    hooks="warmup.inductor.pad_mm:PadDecisions",
    rebuild="warmup.models.rebuilt:rebuild_pad",
    sites=frozenset({"pad"}),
    precedes_graphs=True,
    brief_format="{op} {n}x{k}",
    work=_work,
    is_product=True,
)


@dataclass(frozen=True, kw_only=True)
class PadProblem(ProductProblem):
    """A GEMM whose operands inductor's pad_mm pass may pad; sizes are in elements.

    ``free`` names the operands (``a``, ``b``) whose padding costs nothing, because the kernel that
    produces them can write them padded.
    """

    kind = PAD

    op: str
    batch: Dim | None = None
    m: Dim
    n: Dim
    k: Dim
    dtype: str
    a: Layout
    b: Layout
    bias: str | None = None
    free: str = ""
    fp32: str | None = None

    def keys_in_region(self) -> frozenset[str]:
        """Return the keys under which a smaller graph, at the upper end, may ask about this GEMM.

        What produces an operand may be outside of the smaller graph: then its padding is not free
        there. A range without an upper end stays a range.
        """
        fixed = self.of_key(RANGE.sub(r"\1", self.key))
        return frozenset(replace(fixed, free=free).key for free in ("", "a", "b", "ab"))


# Row kind ``weight``.

WEIGHT_DTYPES: Final = ("f64", "f32", "bf16", "f16")
# The widest load of a thread, and what TMA requires of row strides (CUDA programming guide, tensor
# maps).
ALIGNED_BYTES: Final = 16
MULTIPLES: Final = (64, 128)
_MOST_ADDED: Final = 8  # a larger multiple may add at most this part of the features: an eighth
_SIZES: Final = r"[0-9]+(?:,[0-9]+)*"
_VIA: Final = r"[a-z0-9_.,;()+\-]+"
_END: Final = r"(?: fp32=[a-z0-9]+)?"
_FLOAT: Final = rf"(?:{'|'.join(WEIGHT_DTYPES)})"


def _work_of_weight(ingredients: Mapping[str, str]) -> Work | None:
    structure, rows = _structure_of(ingredients), Dim.read(ingredients["m"])
    if rows.high is None:
        return None
    m, features = rows.high, structure.features
    widths = sum(structure.inputs) + sum(structure.outputs)
    read = max(structure.inputs, default=features)
    written = sum(structure.outputs) or features
    moved = (widths * features + m * (read + written)) * item_bytes(structure.dtype)
    return Work(multiplied_in(ingredients), 2 * m * features * widths, moved)


WEIGHT: Final = Kind(
    name="weight",
    pattern=re.compile(
        rf"weight chain m={DIM} in={_SIZES} features=[0-9]+ out={_SIZES} {_FLOAT} bias=[01]{{2,}}"
        rf" via={_VIA}{_END}"
        rf"|weight n m={DIM} in=[0-9]+ features=[0-9]+ {_FLOAT} bias=[01]{_END}"
        rf"|weight k m={DIM} features=[0-9]+ out=[0-9]+ {_FLOAT} bias=[01]{_END}"
    ),
    words=("kind", "form", "dtype"),
    fixed=2,
    families=frozenset({Family.WEIGHT}),
    nearest_by=("m",),
    ranges=("m",),
    question="via",
    work=_work_of_weight,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Linears that are padded together or not at all, without their names and numbers of rows.

    Sizes are in elements. ``inputs`` has a size for each Linear that produces the features,
    ``outputs`` a size for each that consumes them, and ``biases`` an entry for each of all these.
    ``via`` has one expression, or one for each consuming Linear, joined by ``;``.
    """

    inputs: tuple[int, ...]
    features: int
    outputs: tuple[int, ...]
    dtype: str
    biases: tuple[bool, ...]
    via: str | None = None
    fp32: str | None = None

    @property
    def differs_by_rows(self) -> bool:
        """Whether one model can be padded for some numbers of rows and unpadded for others."""
        return self.form == "n"

    @property
    def form(self) -> str:
        """``chain``, ``n`` or ``k``: which dim of the weights is padded."""
        if not self.outputs:
            return "n"
        return "chain" if self.inputs else "k"

    def key(self, rows: Dim) -> str:
        """Return the key of this structure with *rows* rows; a ProblemError where it has none."""
        words = ["weight", self.form, f"m={rows}"]
        words += [f"in={_listed(self.inputs)}"] if self.inputs else []
        words += [f"features={self.features}"]
        words += [f"out={_listed(self.outputs)}"] if self.outputs else []
        words += [self.dtype, f"bias={''.join(str(int(bias)) for bias in self.biases)}"]
        words += [f"via={self.via}"] if self.via is not None else []
        words += [f"fp32={self.fp32}"] if self.fp32 is not None else []
        key = " ".join(words)
        WEIGHT.check(key)
        if len(self.biases) != len(self.inputs) + len(self.outputs):
            raise ProblemError(f"the number of biases is not that of Linears: {key[:120]!r}")
        return key


@dataclass(frozen=True, slots=True)
class Padding:
    """To how many features weights are padded; for numbers of rows in ``as_is`` they are not."""

    features: int
    as_is: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        unpadded = f", as they are for {', '.join(map(str, self.as_is))} rows" if self.as_is else ""
        return f"{self.features}{unpadded}"


def parse_weight(key: str) -> tuple[Structure, Dim]:
    """Return the structure of *key*, and its number or range of rows; a ProblemError without."""
    parts = WEIGHT.ingredients(key)
    structure, rows = _structure_of(parts), Dim.read(parts["m"])
    if structure.key(rows) != key:
        raise ProblemError(f"not a weight key in canonical form: {key[:120]!r}")
    return structure, rows


def _structure_of(parts: Mapping[str, str]) -> Structure:
    return Structure(
        inputs=_sizes(parts.get("in")),
        features=int(parts["features"]),
        outputs=_sizes(parts.get("out")),
        dtype=parts["dtype"],
        biases=tuple(digit == "1" for digit in parts["bias"]),
        via=parts.get("via"),
        fp32=parts.get("fp32"),
    )


def is_aligned(features: int, dtype: str) -> bool:
    """Whether every row of *features* elements starts at a multiple of 16 bytes."""
    return features * item_bytes(dtype) % ALIGNED_BYTES == 0


def padded_sizes(features: int, dtype: str) -> tuple[int, ...]:
    """Return the sizes to which a build tries to pad *features*, ascending; empty if aligned.

    The next multiple of 16 bytes lets kernels load whole vectors and use TMA. The next multiples of
    64 and of 128 elements leave no tile half empty, and are tried where they add at most an eighth.
    """
    if is_aligned(features, dtype):
        return ()
    aligned = _next_multiple(features, ALIGNED_BYTES // item_bytes(dtype))
    whole = (_next_multiple(features, multiple) for multiple in MULTIPLES)
    return tuple(sorted({aligned, *(n for n in whole if n <= features + features // _MOST_ADDED)}))


def winner_of(structure: Structure, features: int) -> Winner:
    """Return the choice to pad *structure* to *features*; its own number means no padding."""
    uid = "as_is" if features == structure.features else "padded"
    return Winner(Family.WEIGHT, uid, (("features", features),))


def features_of(structure: Structure, winner: Winner) -> int:
    """Return to how many features *winner* pads; a ProblemError where no build tries that."""
    features = dict(winner.kwargs).get("features")
    sizes = (structure.features, *padded_sizes(structure.features, structure.dtype))
    if type(features) is not int or features not in sizes:
        raise ProblemError(
            f"{winner} does not say to which size to pad {structure.features} features "
            f"(expected any of {_listed(sizes)})"
        )
    return features


def _next_multiple(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _listed(sizes: tuple[int, ...]) -> str:
    return ",".join(str(size) for size in sizes)


def _sizes(text: str | None) -> tuple[int, ...]:
    return () if text is None else tuple(int(size) for size in text.split(","))
