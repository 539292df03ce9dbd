"""The choices of one GEMM selection: the row's choice, the library's choice, deferred choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warmup.core.rows import Family, Winner
from warmup.inductor.gemm.choices import identify, is_library


@dataclass(slots=True)
class DeferredCppChoices:
    """A deferred call of ``CppGemmTemplate.add_choices``: it generates code and packs weights."""

    call: Callable[[list[Any]], Any]

    def generate(self) -> list[Any]:
        """Make the call and return the choices it adds."""
        choices: list[Any] = []
        self.call(choices)
        return choices


def generate_deferred(choices: list[Any]) -> list[Any]:
    """Return *choices* with each deferred call replaced by the choices it adds."""
    generated: list[Any] = []
    for choice in choices:
        generated.extend(choice.generate() if isinstance(choice, DeferredCppChoices) else [choice])
    return generated


def choice_of(choices: list[Any], winner: Winner) -> Any | None:
    """Return the choice identified by *winner*; None if *choices* do not contain it."""
    candidates = choices
    if winner.family is Family.CPP:
        candidates = [
            choice
            for deferred in choices
            if isinstance(deferred, DeferredCppChoices)
            for choice in deferred.generate()
        ]
    ready = (choice for choice in candidates if not isinstance(choice, DeferredCppChoices))
    return next((choice for choice in ready if identify(choice) == winner), None)


def library_or_first(name: str, choices: list[Any]) -> Any:
    """Return the fallback: the library call of default mode, else the first library call.

    Without library calls it is the first choice. Default mode calls ``addmm`` with the bias as
    given. Max-autotune expands the bias first, which costs ``aten::addmm`` a copy, and offers
    ``bias_addmm`` to avoid it (kernel/mm.py).
    """
    ready = [choice for choice in choices if not isinstance(choice, DeferredCppChoices)]
    library = [choice for choice in ready if is_library(choice)]
    for uid in (f"aten::bias_{name}", f"aten::{name}"):
        for choice in library:
            if identify(choice) == Winner(Family.EXTERN, uid):
                return choice
    return library[0] if library else generate_deferred(choices)[0]
