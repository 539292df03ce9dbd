"""`Kind`: how the keys of a row kind are written, and what can be done with its problems.

Each kind stands in a module of its own; `warmup.keys.registry` lists them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Winner

MAX_KEY_LENGTH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of rows.

    ``pattern`` matches its keys whole. ``words`` names those words of a key that are not spelled
    ``name=value``, in key order. Two keys can only be near each other when their first ``fixed``
    words are equal. ``families`` are those that its winners come from.

    ``hooks`` names the class that answers inductor's questions of this kind (see
    `warmup.inductor.adapter`), as ``module:class``; None where inductor never asks, because rows
    are applied to the model before it is compiled. ``rebuild`` names the function that makes a
    small module which asks for a given key (see `warmup.models.rebuilt`), as ``module:function``;
    None where a problem can be tuned with the user's model only.

    ``is_searchable``: a build can look for candidates that inductor does not list. ``neutral`` is
    the winner that leaves the rest of the graph alone where no row answers; None where every
    answer does. ``precedes_graphs``: decided before inductor starts to compile a graph, so that the
    decision belongs to the graph that comes next.

    For people: ``question`` is the ingredient that is printed in a column of its own, ``hidden``
    are ingredients that are not printed, and ``summary`` is what many rows are called where they
    are counted in one line; None lists each row.
    """

    name: str
    pattern: re.Pattern[str]
    words: tuple[str, ...]
    fixed: int
    families: frozenset[Family]
    hooks: str | None = None
    rebuild: str | None = None
    is_searchable: bool = False
    neutral: Winner | None = None
    precedes_graphs: bool = False
    question: str | None = None
    hidden: frozenset[str] = frozenset()
    summary: str | None = None

    @property
    def is_asked(self) -> bool:
        """Whether inductor asks for keys of this kind while it compiles."""
        return self.hooks is not None

    def label(self, key: str) -> str:
        """Return *key* for people, without the kind, the question and hidden ingredients.

        Raises:
            ProblemError: *key* is not of this kind.
        """
        left_out = {*self.hidden, self.question, "kind"}
        unnamed = frozenset(self.words)
        return " ".join(
            value if name in unnamed else f"{name}={value}"
            for name, value in self.ingredients(key).items()
            if name not in left_out
        )

    def brief(self, key: str) -> str:
        """Return the op of *key* and its weight's sizes, for lists by bucket; else its label.

        Raises:
            ProblemError: *key* is not of this kind.
        """
        named = self.ingredients(key)
        if named.keys() >= {"op", "n", "k"}:
            return f"{named['op']} {named['n']}x{named['k']}"
        return self.label(key)

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
