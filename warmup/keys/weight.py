"""Row kind ``weight``: to which size a weight is padded ahead of time.

    weight chain m=560 in=1280,1280 features=3420 out=1280 bf16 bias=111 via=mul(silu(p0),p1)
    weight n m=1024 in=768 features=50257 bf16 bias=0
    weight k m=1024 features=588 out=1024 bf16 bias=1

The features are the dim that is padded: those that Linears make (``n``), that Linears take (``k``),
or that some make and others take (``chain``). ``in`` names the other size of each Linear that makes
them, ``out`` that of each that takes them, ``bias`` says in this order which Linears have one, and
``via`` spells what is computed in between from what the Linears made, ``p0``, ``p1``.

The winner has the number of features to pad to; their own number is the library default. Rows of
the form ``n`` may differ: the weight as it is is the first rows of the padded one, and costs
nothing beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warmup.core.dtypes import ITEM_BYTES
from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Winner
from warmup.keys.gemm import DIM, Dim
from warmup.keys.kind import Kind

WEIGHT_DTYPES: Final = ("f64", "f32", "bf16", "f16")
# What a thread loads at once and TMA asks of a row stride (CUDA programming guide, tensor maps).
ALIGNED_BYTES: Final = 16
MULTIPLES: Final = (64, 128)
_MOST_ADDED: Final = 8  # one part in so many
_SIZES: Final = r"[0-9]+(?:,[0-9]+)*"
_VIA: Final = r"[a-z0-9_.,;()+\-]+"
_END: Final = r"(?: fp32=[a-z0-9]+)?"
_FLOAT: Final = rf"(?:{'|'.join(WEIGHT_DTYPES)})"

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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Linears whose padding is one decision, without their names and the rows they are given.

    Sizes are in elements. ``inputs`` has one size for each Linear that makes the features,
    ``outputs`` one for each that takes them; ``biases`` has one entry for each of all these.
    ``via`` has one expression, or one for each Linear that takes the features, joined by ``;``.
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
        """Whether each number of rows has a choice of its own, in one and the same model."""
        return self.form == "n"

    @property
    def form(self) -> str:
        """``chain``, ``n`` or ``k``: which dim of the weights is padded."""
        if not self.outputs:
            return "n"
        return "chain" if self.inputs else "k"

    def key(self, rows: Dim) -> str:
        """Return the canonical text of this structure with *rows* rows in each activation.

        Raises:
            ProblemError: an ingredient cannot be spelled in a key.
        """
        words = ["weight", self.form, f"m={rows}"]
        words += [f"in={_listed(self.inputs)}"] if self.inputs else []
        words += [f"features={self.features}"]
        words += [f"out={_listed(self.outputs)}"] if self.outputs else []
        words += [self.dtype, f"bias={''.join(str(int(each)) for each in self.biases)}"]
        words += [f"via={self.via}"] if self.via is not None else []
        words += [f"fp32={self.fp32}"] if self.fp32 is not None else []
        key = " ".join(words)
        WEIGHT.check(key)
        if len(self.biases) != len(self.inputs) + len(self.outputs):
            raise ProblemError(f"not one bias for each Linear: {key[:120]!r}")
        return key


@dataclass(frozen=True, slots=True)
class Padding:
    """To how many features weights are padded, and for how many rows they serve as they are."""

    features: int
    as_is: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        kept = f", as they are for {', '.join(map(str, self.as_is))} rows" if self.as_is else ""
        return f"{self.features}{kept}"


def parse_weight(key: str) -> tuple[Structure, Dim]:
    """Return the structure that *key* names, and its rows.

    Raises:
        ProblemError: *key* is not a weight key.
    """
    named = WEIGHT.ingredients(key)
    structure = Structure(
        inputs=_sizes(named.get("in")),
        features=int(named["features"]),
        outputs=_sizes(named.get("out")),
        dtype=named["dtype"],
        biases=tuple(digit == "1" for digit in named["bias"]),
        via=named.get("via"),
        fp32=named.get("fp32"),
    )
    low, dots, high = named["m"].partition("..")
    rows = Dim(int(low), int(high) if high else None) if dots else Dim.of(int(low))
    if structure.key(rows) != key:
        raise ProblemError(f"not a weight key as warmup spells it: {key[:120]!r}")
    return structure, rows


def is_aligned(features: int, dtype: str) -> bool:
    """Whether rows of *features* elements all start where 16 bytes can be loaded at once."""
    return features * ITEM_BYTES[dtype] % ALIGNED_BYTES == 0


def padded_sizes(features: int, dtype: str) -> tuple[int, ...]:
    """Return the sizes that a build tries for *features*, smallest first; none where aligned.

    The next multiple of 16 bytes is always among them: kernels can then load whole vectors, and
    TMA can be used. So are those of 64 and of 128 elements, which leave no tile half empty, where
    they add at most an eighth.
    """
    if is_aligned(features, dtype):
        return ()
    aligned = _next_multiple(features, ALIGNED_BYTES // ITEM_BYTES[dtype])
    whole = (_next_multiple(features, multiple) for multiple in MULTIPLES)
    return tuple(sorted({aligned, *(n for n in whole if n <= features + features // _MOST_ADDED)}))


def winner_of(structure: Structure, features: int) -> Winner:
    """Return the choice to pad *structure* to *features*; its own number means as it is."""
    uid = "as_is" if features == structure.features else "padded"
    return Winner(Family.WEIGHT, uid, (("features", features),))


def features_of(structure: Structure, winner: Winner) -> int:
    """Return the number of features that *winner* says, for weights of *structure*.

    Raises:
        ProblemError: it says none, or one that no build would have tried.
    """
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
