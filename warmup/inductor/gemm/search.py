"""The candidates of a GEMM selection beyond inductor's own list, each once.

Inductor's options stay as they are: every candidate is made from a template, its heuristic and
what is known of the sizes, so no size is guarded on and nothing is remembered for later selections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.kernel.bmm import bmm_template
from torch._inductor.kernel.mm import mm_template
from torch._inductor.select_algorithm import TritonTemplate

from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.core.search import CandidateSource, Resource, SearchCounts
from warmup.inductor.gemm import splits
from warmup.inductor.gemm.splits import split_candidates
from warmup.inductor.gemm.tile_limits import exceeded, spills
from warmup.inductor.gemm.tiles import (
    STATED_OPS,
    capacity_of,
    exhaustive,
    factors_of,
    retiled,
    stated_tiles,
    tile_of,
)
from warmup.inductor.gemm.tma import TmaCandidates, tma_candidates
from warmup.inductor.versions import Version

# What is known of shared memory was found with these (warmup/tile.py).
_PRUNED = frozenset({mm_template.uid, bmm_template.uid, TmaCandidates.uid})


@dataclass(frozen=True, slots=True)
class Selection:
    """One GEMM selection before code is generated: inductor's handler, and what it was asked."""

    version: Version
    handler: Any
    kernel_inputs: Any
    templates: list[Any]
    op_name: str

    @property
    def is_open(self) -> bool:
        """Whether it is on a device for which more candidates are known."""
        return self.kernel_inputs.device_type == "cuda" and torch.version.hip is None

    @property
    def left_out(self) -> list[Any]:
        """The template that the lowering leaves out of a product with a very large K.

        It offers decompose_k alone then, except that from torch 2.15 on EXHAUSTIVE keeps both
        (torch/_inductor/kernel/mm.py, tuned_mm).
        """
        offered = {template.uid for template in self.templates}
        is_left_out = splits.SPLIT_UID in offered and mm_template.uid not in offered
        return [mm_template] if is_left_out and self.is_open else []

    def candidates(self, template: Any) -> Iterator[Any]:
        """Yield what inductor would list for *template*."""
        yield from self.handler.get_ktc(self.kernel_inputs, template, self.op_name)

    def tma(self, templates: list[Any]) -> TmaCandidates:
        """Return the persistent TMA candidates beside *templates*."""
        return tma_candidates(self.handler, self.kernel_inputs, templates, self.op_name)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Candidates to add to inductor's own, and how they came about."""

    choices: list[Any]
    searched: SearchCounts


def unlisted(selection: Selection) -> dict[str, Iterator[Any]]:
    """Return, by uid, candidates of each template that only a search offers.

    What a table holds of it is forced from the first one; none is generated.
    """
    if not selection.is_open:
        return {}
    left_out = selection.left_out
    found = {template.uid: selection.candidates(template) for template in left_out}
    tma = selection.tma([*selection.templates, *left_out])
    if tma:
        found[tma.uid] = iter(tma)
    if splits.SPLIT_UID not in {template.uid for template in selection.templates}:
        found[splits.SPLIT_UID] = _splits(selection)
    return found


def search(
    selection: Selection, word: Search, listed: Sequence[Any], neighbours: Iterable[Winner] = ()
) -> SearchResult:
    """Return what *word* adds to inductor's *listed* choices.

    *neighbours* are winners of other problems; the tiles of those of this selection's templates
    are tried. What cannot be launched for certain is left out, except of persistent TMA's own list.
    """
    if not selection.is_open:
        return SearchResult([], SearchCounts(search=word, listed=len(listed)))
    seen = {_key(choice) for choice in listed}
    pruned: Counter[Resource] = Counter()
    added: dict[CandidateSource, list[Any]] = {}
    judge = _Judge(selection)
    for source, choice in _sources(selection, word, listed, neighbours):
        key = _key(choice)
        if key in seen:
            continue
        seen.add(key)
        lacking = None if source is CandidateSource.TMA else judge.lacking(choice)
        if lacking is None:
            added.setdefault(source, []).append(choice)
        else:
            pruned[lacking] += 1
    choices = [choice for found in added.values() for choice in found]
    tiles = (tile_of(choice) for choice in choices)
    return SearchResult(
        choices,
        SearchCounts(
            search=word,
            listed=len(listed),
            added=tuple((source, len(found)) for source, found in added.items()),
            pruned=tuple(sorted(pruned.items())),
            spilling=sum(tile is not None and spills(tile) for tile in tiles),
        ),
    )


def _sources(
    selection: Selection, word: Search, listed: Sequence[Any], neighbours: Iterable[Winner]
) -> Iterator[tuple[CandidateSource, Any]]:
    """Yield candidates with where they come from; some come more than once."""
    inputs, op = selection.kernel_inputs, selection.op_name
    tma = list(selection.tma(selection.templates))
    yield from ((CandidateSource.TMA, choice) for choice in tma)
    if word is Search.DEFAULT:
        return
    is_wide = word is Search.WIDE
    yield from (
        (CandidateSource.SPLITS, choice) for choice in _splits(selection, only_even=is_wide)
    )
    bases = _first_of_each([*listed, *tma])
    for winner in neighbours:
        if winner.uid in bases:
            near = retiled(bases[winner.uid], inputs, op, [dict(winner.kwargs)])
            yield from ((CandidateSource.NEIGHBOURS, choice) for choice in near)
    if op in STATED_OPS:
        for base in bases.values():
            stated = retiled(base, inputs, op, stated_tiles(inputs))
            yield from ((CandidateSource.TILES, choice) for choice in stated)
    if word is not Search.EXHAUSTIVE:
        return
    for left_out in selection.left_out:
        more = [left_out, *selection.templates]
        bases |= _first_of_each([*selection.candidates(left_out), *selection.tma(more)])
    for base in bases.values():
        yield from ((CandidateSource.EXHAUSTIVE, choice) for choice in exhaustive(base, inputs, op))


def _splits(selection: Selection, *, only_even: bool = False) -> Iterator[Any]:
    return split_candidates(
        selection.version,
        selection.kernel_inputs,
        selection.templates,
        selection.op_name,
        only_even=only_even,
    )


def _first_of_each(choices: Iterable[Any]) -> dict[str, Any]:
    """Return the first choice of each Triton template, by uid."""
    first: dict[str, Any] = {}
    for choice in choices:
        if isinstance(choice.template, TritonTemplate):
            first.setdefault(choice.template.uid, choice)
    return first


def _key(choice: Any) -> tuple[str, frozenset[tuple[str, str]]]:
    kwargs = choice.params.to_kwargs()
    return choice.template.uid, frozenset((name, str(value)) for name, value in kwargs.items())


class _Judge:
    """Tells what a candidate of *selection* lacks on its device."""

    def __init__(self, selection: Selection) -> None:
        self._capacity = capacity_of(selection.kernel_inputs.device())
        self._factors = {
            uid: factors_of(selection.kernel_inputs, by_tma=uid == TmaCandidates.uid)
            for uid in _PRUNED
        }

    def lacking(self, choice: Any) -> Resource | None:
        """Return what a launch of *choice* lacks for certain."""
        tile = tile_of(choice)
        factors = self._factors.get(choice.template.uid)
        if tile is None or factors is None:
            return None
        return exceeded(tile, *factors, self._capacity)
