"""What a row kind is: how its keys are spelled and which choices may answer.

The kinds themselves stand in the module of their words; `warmup.keys.registry` lists them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warmup.core.errors import ProblemError
from warmup.core.rows import Family

MAX_KEY_LENGTH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of rows.

    ``pattern`` matches its keys whole. ``words`` names those words of a key that are not spelled
    ``name=value``, in key order. Two keys can only be near each other when their first ``fixed``
    words are equal. ``families`` are those that its winners come from.
    """

    name: str
    pattern: re.Pattern[str]
    words: tuple[str, ...]
    fixed: int
    families: frozenset[Family]

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
