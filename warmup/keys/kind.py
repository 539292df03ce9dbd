"""`Kind`: what the rest of warmup knows about a row kind: its keys, its modules, how it is printed.

Each kind stands in a module of its own; `warmup.keys.registry` lists them. docs/contributing.md
says what a new kind needs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from warmup.core.errors import ProblemError
from warmup.core.phases import BuildStage
from warmup.core.rows import Family, Winner

MAX_KEY_LENGTH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of decision that rows of a table make, so that nothing is measured at serving.

    A problem of the kind is spelled as a key, ``pad mm m=560 n=1280 k=3420 bf16 a=row b=col``:
    words with one space between them, most of them ingredients ``name=value``. Modules that handle
    rows of every kind test for no particular kind; they read these properties.

    Keys:

    - ``name``: the first word of each key (a GEMM key begins with its op instead), the section of
      the rows in a table, and the ``kind`` in events.
    - ``pattern``: matches a whole key. Tables and logs are not trusted: any other text is refused.
    - ``words``: names for the words that are not ``name=value``, in key order.
    - ``fixed``: how many first words a row shares with a missed key to be its nearest row.
    - ``nearest_by``: sizes that decide between rows which differ from a missed key in equally many
      ingredients: the nearest is the row with the closest of these.
    - ``ranges``: ingredients that are a range, ``m=2..64``, where a dim of the model is dynamic. A
      miss of such a key has the reason ``dynamic_dim`` instead of ``not_in_table``.

    Winners:

    - ``families``: where winners come from; a table with a winner from elsewhere is refused.
    - ``neutral``: the winner that leaves the keys of other kinds as they are, such as no padding;
      None when every winner does.

    The kind's own modules:

    - ``hooks``: ``module:class`` of the hooks that ask for keys while inductor compiles, see
      `warmup.inductor.patches.KindHooks`. None when inductor never asks, because rows change the
      model before it is compiled.
    - ``rebuild``: ``module:function`` that takes a key and a device, and returns a small module
      that asks for this key, see `warmup.models.rebuilt`. None when a missed problem can be tuned
      with the user's model only.
    - ``work``: ``module:function`` that takes a key and returns the `Work` of its problem, or None
      where the key does not say enough. None when no key of the kind does.
    - ``product``: ``module:function`` that takes a key and returns the product that its rows time,
      in words that keys of other kinds share. None when rows are about something else.
    - ``linears``: ``module:function`` that takes a key and returns each `Linear` that asks for it,
      where its weight is frozen. None when freezing decides about no key of the kind.

    Measuring:

    - ``sites``: names that `warmup.inductor.benchmarks` gives to inductor's own measurements for
      this decision. While keys are tuned such a measurement becomes a row: it is not uncovered.
    - ``is_searchable``: a wider search tries candidates that inductor does not list, and measures
      the rows of a narrower search again.
    - ``stage``: what a build spends time on while it measures a problem of the kind in its own
      process.
    - ``is_named``: the second word is a name, which changes nothing that is measured: a build
      measures problems that differ in it alone once.
    - ``precedes_graphs``: hooks ask before inductor starts to compile the graph that the decision
      is for, and it counts for the next graph.

    Printing:

    - ``question``: the ingredient, such as a GEMM's epilogue, that has a column of its own.
    - ``hidden``: ingredients that labels leave out.
    - ``brief_format``: how a key is printed beside its bucket, a format string over ingredients;
      None prints its label.
    - ``summary``: what rows are called where a build counts them in one line, ``launch configs``;
      None lists each row.
    - ``library_default``: what that line compares the winners with, the choice of default mode.
    """

    name: str
    pattern: re.Pattern[str]
    words: tuple[str, ...]
    fixed: int
    families: frozenset[Family]
    nearest_by: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    neutral: Winner | None = None
    hooks: str | None = None
    rebuild: str | None = None
    work: str | None = None
    product: str | None = None
    linears: str | None = None
    sites: frozenset[str] = frozenset()
    is_searchable: bool = False
    stage: BuildStage = BuildStage.BARE_TRIALS
    is_named: bool = False
    precedes_graphs: bool = False
    question: str | None = None
    hidden: frozenset[str] = frozenset()
    brief_format: str | None = None
    summary: str | None = None
    library_default: str = "the library default"

    @property
    def is_asked(self) -> bool:
        """Whether inductor asks for keys of this kind while it compiles."""
        return self.hooks is not None

    def measured_once(self, key: str) -> str:
        """Return what *key* shares with all keys that a build measures together with it."""
        words = key.split(" ")
        is_spelled = len(words) > len(self.words)  # a kernel without a key has a name alone
        return " ".join((*words[:1], *words[2:])) if self.is_named and is_spelled else key

    def label(self, key: str, shared: Collection[str] = ()) -> str:
        """Return *key* for printing, without the kind, the question, and hidden ingredients.

        Ingredients in *shared* are left out too.

        Raises:
            ProblemError: *key* is not of this kind.
        """
        left_out = {*self.hidden, *shared, self.question, "kind"}
        unnamed = frozenset(self.words)
        return " ".join(
            value if name in unnamed else f"{name}={value}"
            for name, value in self.ingredients(key).items()
            if name not in left_out
        )

    def brief(self, key: str) -> str:
        """Return *key* as it is printed beside its bucket, whose sizes need no repeating.

        Raises:
            ProblemError: *key* is not of this kind.
        """
        if self.brief_format is None:
            return self.label(key)
        return self.brief_format.format_map(self.ingredients(key))

    def check(self, key: str) -> None:
        """Return when *key* is a key of this kind.

        Raises:
            ProblemError: it is not.
        """
        if len(key) > MAX_KEY_LENGTH or self.pattern.fullmatch(key) is None:
            raise ProblemError(f"not a {self.name} key: {key[:120]!r}")

    def ingredients(self, key: str) -> dict[str, str]:
        """Return the named ingredients of *key*, in key order.

        Raises:
            ProblemError: *key* is not of this kind.
        """
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
    """A decision that inductor is about to make, described; each row kind has a dataclass of it.

    Raises:
        ProblemError: an ingredient has no text form in a key.
    """

    kind: ClassVar[Kind]

    def __post_init__(self) -> None:
        self.kind.check(self.key)

    @cached_property
    def key(self) -> str:
        """The canonical text of this problem, by which rows and events name it."""
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
    """Return a sort key that puts ``m=16`` before ``m=128``, for any text.

    A string, which takes a tenth of the memory of a tuple of the parts.
    """
    parts = re.split(r"0*([0-9]+)", text)  # text and digits in turn
    return "".join(
        f"{chr(min(len(part), sys.maxunicode))}{part}" if i % 2 else f"{part}\0"
        for i, part in enumerate(parts)
    )
