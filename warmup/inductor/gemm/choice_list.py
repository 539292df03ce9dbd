"""What a GEMM selection offers: choices, some held back, and those that matter among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warmup.core.rows import Family, Winner
from warmup.inductor.gemm.choices import identify, is_library


@dataclass(slots=True)
class HeldBack:
    """A call of ``CppGemmTemplate.add_choices`` that has not happened yet."""

    call: Callable[[list[Any]], Any]

    def generate(self) -> list[Any]:
        """Make the call and return the choices it adds."""
        choices: list[Any] = []
        self.call(choices)
        return choices


def generate(choices: list[Any]) -> list[Any]:
    """Return *choices* with every held-back one generated, in place."""
    generated: list[Any] = []
    for choice in choices:
        generated.extend(choice.generate() if isinstance(choice, HeldBack) else [choice])
    return generated


def matching(choices: list[Any], winner: Winner) -> Any | None:
    """Return the choice that *winner* stands for, None when it is not among *choices*."""
    candidates = choices
    if winner.family is Family.CPP:
        candidates = [c for held in choices if isinstance(held, HeldBack) for c in held.generate()]
    ready = (choice for choice in candidates if not isinstance(choice, HeldBack))
    return next((choice for choice in ready if identify(choice) == winner), None)


def library_or_first(name: str, choices: list[Any]) -> Any:
    """Return the deterministic fallback: what default mode calls, else the first library call.

    Default mode calls ``addmm`` with the bias as it is. Tuning expands the bias first, which costs
    ``aten::addmm`` a copy, and offers ``bias_addmm`` to undo that (kernel/mm.py).
    """
    ready = [choice for choice in choices if not isinstance(choice, HeldBack)]
    library = [choice for choice in ready if is_library(choice)]
    for uid in (f"aten::bias_{name}", f"aten::{name}"):
        for choice in library:
            if identify(choice) == Winner(Family.EXTERN, uid):
                return choice
    return library[0] if library else generate(choices)[0]
