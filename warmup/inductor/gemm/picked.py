"""`picked_choice` and `narrowed`: candidates that imported configs name, made from a template.

No code is generated for the candidates that are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from torch._inductor.select_algorithm import ExternKernelChoice

from warmup.core.imported_config import PickedConfig
from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.core.search import CandidateSource
from warmup.inductor.gemm.choices import identify, identify_template
from warmup.inductor.gemm.search import SearchResult, Selection
from warmup.inductor.gemm.tiles import choices_for_tiles


def narrowed(
    mode: Search,
    listed: Sequence[Any],
    wide: SearchResult,
    named: Callable[[Sequence[Winner]], Collection[Winner]],
) -> SearchResult:
    """Return the named of the *listed* choices and those of *wide*, and all library calls.

    *named* takes the template candidates and returns those to measure, for the search *mode*.
    """
    sources: list[CandidateSource | None] = [None] * len(listed)
    for source, count in wide.searched.added:
        sources += [source] * count
    choices = [*listed, *wide.choices]
    winners = [
        None if isinstance(choice.template, ExternKernelChoice) else identify_template(choice)
        for choice in choices
    ]
    templates = [winner for winner in winners if winner is not None]
    wanted = named(templates) if templates else ()
    kept = [
        (choice, source)
        for choice, winner, source in zip(choices, winners, sources, strict=True)
        if winner is None or winner in wanted
    ]
    added = [source for _, source in kept if source is not None]
    return SearchResult(
        [choice for choice, _ in kept],
        replace(
            wide.searched,
            search=mode,
            listed=len(kept) - len(added),
            added=tuple((source, added.count(source)) for source in dict.fromkeys(added)),
            left_out=len(choices) - len(kept),
        ),
    )


def picked_choice(base: Any, selection: Selection, picked: PickedConfig) -> Any | None:
    """Return the choice of *picked*, made from *base*, a choice of its template.

    None where this torch has another source of the template, or makes another config for these
    sizes: nobody named that one.
    """
    if picked.source_hash not in {None, base.template.src_hash}:
        return None
    tile = dict(picked.kwargs)
    made = choices_for_tiles(base, selection.kernel_inputs, selection.op_name, [tile])
    return next((choice for choice in made if _has(choice.params.to_kwargs(), tile)), None)


def choice_of_config(choices: Sequence[Any], picked: PickedConfig) -> Any | None:
    """Return the choice of *picked* among *choices*; None without it."""
    tile = dict(picked.kwargs)
    for choice in choices:
        winner = identify(choice)
        if winner is not None and winner.uid == picked.uid and _has(dict(winner.kwargs), tile):
            return choice
    return None


def _has(kwargs: Any, tile: dict[str, int]) -> bool:
    return all(kwargs.get(name, 0) == value for name, value in tile.items())
