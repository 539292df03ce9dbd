"""`ServedVersions`: which minors of torch and Triton some server runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import SettingsError
from warmup.core.runtime import Runtime, minor_of

_VERSION_WORD: Final = re.compile(
    r"(torch|triton)=([0-9]{1,4}\.[0-9]{1,4})(\.[0-9A-Za-z.+-]{1,48})?"
)


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The minors that are served, such as ``2.13``; of software that has none, every version is."""

    torch: frozenset[str] = frozenset()
    triton: frozenset[str] = frozenset()

    def __str__(self) -> str:
        texts = [*(f"torch {one}" for one in sorted(self.torch))]
        return ", ".join([*texts, *(f"triton {one}" for one in sorted(self.triton))]) or "every one"

    def unserved(self, runtime: Runtime) -> tuple[str, ...]:
        """Return which versions of *runtime* nobody serves, such as ``torch 2.11``."""
        found = []
        torch, triton = minor_of(runtime.torch), minor_of(runtime.triton)
        if self.torch and torch not in self.torch:
            found.append(f"torch {torch}")
        if self.triton and runtime.device.type != "cpu" and triton not in self.triton:
            found.append(f"triton {triton}")
        return tuple(found)


def parse_served(words: Iterable[str]) -> ServedVersions:
    """Return the versions in *words*, such as ``torch=2.13,triton=3.8``.

    Raises:
        SettingsError: a word is none.
    """
    found: dict[str, set[str]] = {"torch": set(), "triton": set()}
    for word in (part.strip() for text in words for part in text.split(",")):
        version = _VERSION_WORD.fullmatch(word)
        if version is None:
            raise SettingsError(
                f"--served {word!r} is no version", "write such as torch=2.13 or triton=3.8"
            )
        found[version[1]].add(version[2])
    return ServedVersions(frozenset(found["torch"]), frozenset(found["triton"]))
