"""`Kind`: what the rest of warmup knows about a row kind.

Each kind stands in a module of its own, and `warmup.keys.registry` lists them; docs/contributing.md
says what a new kind needs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from warmup.core.errors import ProblemError
from warmup.core.phases import BuildStage
from warmup.core.roofline import Work
from warmup.core.rows import Family, Winner

MAX_KEY_LENGTH = 2048


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with a constant matrix: its rows m, None for a range, n and k."""

    m: int | None
    n: int
    k: int
    dtype: str
    has_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of decision that rows of a table make, so that nothing is measured at serving.

    A problem of the kind is spelled as a key, ``pad mm m=560 n=1280 k=3420 bf16 a=row b=col``:
    words with one space between them, most of them ingredients ``name=value``. Modules that handle
    rows of every kind test for no particular kind; they read these properties.
    """

    # The first word of each key (a GEMM key begins with its op instead), the section of the rows in
    # a table, and the ``kind`` in events.
    name: str
    pattern: re.Pattern[str]  # of a whole key: tables and logs are not trusted
    words: tuple[str, ...]  # names for the words that are not ``name=value``, in key order
    fixed: int  # how many first words a row shares with a missed key to be its nearest row
    families: frozenset[Family]  # of winners; a table with a winner from elsewhere is refused
    # Sizes that decide between rows which differ from a missed key in equally many ingredients.
    nearest_by: tuple[str, ...] = ()
    # Ingredients that are a range, ``m=2..64``, where a dim of the model is dynamic. A miss of such
    # a key has the reason ``dynamic_dim`` instead of ``not_in_table``.
    ranges: tuple[str, ...] = ()
    # The winner that leaves the keys of other kinds as they are; None when every winner does.
    neutral: Winner | None = None
    # ``module:class`` of the `warmup.inductor.patches.KindHooks` that ask for keys while inductor
    # compiles; None when inductor never asks, because rows change the model before the compile.
    hooks: str | None = None
    # ``module:function`` that returns a small module on a device which asks for a key
    # (`warmup.models.rebuilt`); None when a missed problem can be tuned with the user's model only.
    rebuild: str | None = None
    # The least work of a problem with these ingredients, None where they do not say enough. Where a
    # size is a range it is that of the upper end, at which rows are timed.
    work: Callable[[Mapping[str, str]], Work | None] | None = None
    is_product: bool = False  # rows time the product of matrices that `product_of` names
    # What a key has in common with those that differ from it in the number of rows alone: in an
    # invariant table their winners add up a row in one order. None where none was measured to.
    weight: Callable[[str], str] | None = None
    # In an invariant table a winner depends on the length of a row alone, and so do the bits.
    is_fixed_by_row: bool = False
    # Each `Linear` that asks for a key where its weight is frozen.
    linears: Callable[[str], tuple[Linear, ...]] | None = None
    # What `BenchmarkWatch` calls inductor's own measurements for this decision. While keys are
    # tuned such a measurement becomes a row: it is not uncovered.
    sites: frozenset[str] = frozenset()
    # A wider search tries candidates that inductor does not list, and measures the rows of a
    # narrower search again.
    is_searchable: bool = False
    stage: BuildStage = BuildStage.BARE_TRIALS  # of a build that measures in its own process
    # The second word is a name, which changes nothing that is measured: a build measures problems
    # that differ in it alone once.
    is_named: bool = False
    precedes_graphs: bool = False  # hooks ask before the compile of the graph that a row is for
    question: str | None = None  # the ingredient that has a printed column of its own
    hidden: frozenset[str] = frozenset()  # ingredients that labels leave out
    brief_format: str | None = None  # of a key beside its bucket; None prints the label
    summary: str | None = None  # of rows that a build counts in a line; None lists each row
    library_default: str = "the library default"  # what that line compares the winners with

    @property
    def is_asked(self) -> bool:
        return self.hooks is not None

    def measured_once(self, key: str) -> str:
        """Return what *key* shares with all keys that a build measures together with it."""
        words = key.split(" ")
        is_spelled = len(words) > len(self.words)  # a kernel without a key has a name alone
        return " ".join((*words[:1], *words[2:])) if self.is_named and is_spelled else key

    def label(self, key: str, shared: Collection[str] = ()) -> str:
        """Return *key* for printing, without the kind, the question, hidden and *shared* words."""
        left_out = {*self.hidden, *shared, self.question, "kind"}
        unnamed = frozenset(self.words)
        return " ".join(
            value if name in unnamed else f"{name}={value}"
            for name, value in self.ingredients(key).items()
            if name not in left_out
        )

    def brief(self, key: str) -> str:
        """Return *key* as it is printed beside its bucket, whose sizes need no repeating."""
        if self.brief_format is None:
            return self.label(key)
        return self.brief_format.format_map(self.ingredients(key))

    def check(self, key: str) -> None:
        """Raise a ProblemError unless *key* is a key of this kind."""
        if len(key) > MAX_KEY_LENGTH or self.pattern.fullmatch(key) is None:
            raise ProblemError(f"not a {self.name} key: {key[:120]!r}")

    def ingredients(self, key: str) -> dict[str, str]:
        """Return the named ingredients of *key*, in key order; a ProblemError for another kind."""
        self.check(key)
        names = iter(self.words)
        named: dict[str, str] = {}
        for word in key.replace(" | ", " ").split(" "):
            name, equals, value = word.partition("=")
            if equals:
                named[name] = value
            else:
                named[next(names)] = word
        return named


class Problem:
    """A decision that inductor is about to make; each row kind has a dataclass of it.

    A ProblemError is raised where an ingredient has no text form in a key.
    """

    kind: ClassVar[Kind]

    def __post_init__(self) -> None:
        self.kind.check(self.key)

    @cached_property
    def key(self) -> str:
        return self._spell()

    def _spell(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class ProblemOfKey(Problem):
    """A problem of which only the key is known, as a file has it; the key is not checked."""

    text: str

    def __post_init__(self) -> None:
        pass

    def _spell(self) -> str:
        return self.text


def natural_order(text: str) -> str:
    """Return a sort key of *text* that puts ``m=16`` before ``m=128``.

    A string, which takes a tenth of the memory of a tuple of the parts.
    """
    parts = re.split(r"0*([0-9]+)", text)  # text and digits in turn
    return "".join(
        f"{chr(min(len(part), sys.maxunicode))}{part}" if i % 2 else f"{part}\0"
        for i, part in enumerate(parts)
    )
