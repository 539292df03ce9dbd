"""`search`: the candidates of a GEMM selection beyond inductor's list, without duplicates.

Inductor's options are left alone: every candidate is made from a template, its heuristic and what
is known of the sizes. The search adds no guards and does not affect later selections.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._inductor.kernel.bmm import bmm_template
from torch._inductor.kernel.mm import mm_template
from torch._inductor.select_algorithm import ExternKernelChoice, TritonTemplate

from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.core.search import CandidateSource, Resource, SearchCounts
from warmup.inductor.gemm import splits
from warmup.inductor.gemm.choices import identify_template
from warmup.inductor.gemm.few_rows import FEW_ROWS_UIDS, few_rows_candidates, rows_of_block
from warmup.inductor.gemm.splits import split_candidates
from warmup.inductor.gemm.templates.swapped import SWAPPED
from warmup.inductor.gemm.tiles import (
    WIDE_SEARCH_OPS,
    capacity_of,
    choices_for_tiles,
    exhaustive_choices,
    gemm_operands_of,
    missing_resource,
    spills,
    tile_of,
    wide_search_tiles,
)
from warmup.inductor.gemm.tma import TMA_UIDS, TmaCandidates, tma_candidates
from warmup.inductor.versions import Version

# Templates for which the shared memory of a tile is known (tiles.py).
_PRUNED = frozenset({mm_template.uid, bmm_template.uid, SWAPPED.uid, *TMA_UIDS})


@dataclass(frozen=True, slots=True)
class Selection:
    """A GEMM selection before code is generated: inductor's handler and its arguments.

    ``overrides`` are, by template, the kwargs that the lowering gives to each candidate.
    """

    version: Version
    handler: Any
    kernel_inputs: Any
    templates: list[Any]
    op_name: str
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_searchable(self) -> bool:
        """Whether the search has candidates for the device: on NVIDIA GPUs."""
        return self.kernel_inputs.device_type == "cuda" and torch.version.hip is None

    @property
    def omitted_templates(self) -> list[Any]:
        """The template that the lowering omits for a GEMM with a very large K.

        The lowering offers decompose_k alone then, except that EXHAUSTIVE keeps both from torch
        2.15 on (torch/_inductor/kernel/mm.py, tuned_mm).
        """
        offered = {template.uid for template in self.templates}
        is_omitted = splits.SPLIT_UID in offered and mm_template.uid not in offered
        return [mm_template] if is_omitted and self.is_searchable else []

    def candidates(self, template: Any) -> Iterator[Any]:
        """Yield the candidates that inductor would list for *template*."""
        given = dict(self.overrides.get(template.uid, {}))
        yield from self.handler.get_ktc(self.kernel_inputs, template, self.op_name, given)

    def tma(self, templates: list[Any]) -> TmaCandidates:
        """Return the persistent TMA candidates, if *templates* do not include them."""
        overrides = self.overrides.get(mm_template.uid)
        return tma_candidates(self.handler, self.kernel_inputs, templates, self.op_name, overrides)

    def few_rows(self, uid: str) -> Iterator[Any]:
        """Yield the candidates of the template *uid* for few rows.

        There are none where the lowering neither offers nor omits the mm template.
        """
        offered = {template.uid for template in (*self.templates, *self.omitted_templates)}
        if not self.is_searchable or mm_template.uid not in offered:
            return
        rows = rows_of_block(uid, self.kernel_inputs, self.op_name)
        if rows is None:
            return
        for base in itertools.islice(self.candidates(mm_template), 1):
            yield from few_rows_candidates(uid, base, self.kernel_inputs, rows)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The candidates that a search adds to inductor's list, and a record of the search."""

    choices: list[Any]
    searched: SearchCounts


def unlisted_candidates(selection: Selection) -> dict[str, Iterator[Any]]:
    """Return, by uid, the candidates of each template that only the search offers.

    A row's choice is forced from the first candidate of its template; no code is generated.
    """
    if not selection.is_searchable:
        return {}
    omitted = selection.omitted_templates
    candidates = {template.uid: selection.candidates(template) for template in omitted}
    tma = selection.tma([*selection.templates, *omitted])
    if tma:
        candidates[tma.uid] = iter(tma)
    if splits.SPLIT_UID not in {template.uid for template in selection.templates}:
        candidates[splits.SPLIT_UID] = _splits(selection)
    return {**candidates, **{uid: selection.few_rows(uid) for uid in FEW_ROWS_UIDS}}


def named_alone(
    selection: Selection, listed: Sequence[Any], named: Sequence[Winner]
) -> SearchResult:
    """Return all library calls, and of *listed* and the wide search the choices that are *named*.

    No code is generated for the candidates that are left out.
    """
    wide = search(selection, Search.WIDE, listed, named)
    sources: list[CandidateSource | None] = [None] * len(listed)
    for source, count in wide.searched.added:
        sources += [source] * count
    choices = [*listed, *wide.choices]
    kept = [
        (choice, source)
        for choice, source in zip(choices, sources, strict=True)
        if isinstance(choice.template, ExternKernelChoice) or _is_named(choice, named)
    ]
    added = [source for _, source in kept if source is not None]
    counts = replace(
        wide.searched,
        search=Search.IMPORTED,
        listed=len(kept) - len(added),
        added=tuple((source, added.count(source)) for source in dict.fromkeys(added)),
        left_out=len(choices) - len(kept),
    )
    return SearchResult([choice for choice, _ in kept], counts)


def _is_named(choice: Any, named: Sequence[Winner]) -> bool:
    candidate = identify_template(choice)
    return candidate is not None and any(one.names(candidate) for one in named)


def search(
    selection: Selection, mode: Search, listed: Sequence[Any], neighbours: Iterable[Winner] = ()
) -> SearchResult:
    """Return the candidates that the search *mode* adds to inductor's *listed* choices.

    *neighbours* are winners of other problems, whose tiles are tried for the same templates here.
    Candidates that certainly cannot be launched are pruned, except those that inductor lists for
    persistent TMA.
    """
    if not selection.is_searchable:
        return SearchResult([], SearchCounts(search=mode, listed=len(listed)))
    seen = {_identity(choice) for choice in listed}
    pruned: Counter[Resource] = Counter()
    added: dict[CandidateSource, list[Any]] = {}
    limits = _LaunchLimits(selection)
    for source, choice in _candidates(selection, mode, listed, neighbours):
        identity = _identity(choice)
        if identity in seen:
            continue
        seen.add(identity)
        lacking = None if source is CandidateSource.TMA else limits.missing_for(choice)
        if lacking is None:
            added.setdefault(source, []).append(choice)
        else:
            pruned[lacking] += 1
    choices = [choice for group in added.values() for choice in group]
    tiles = (tile_of(choice) for choice in choices)
    return SearchResult(
        choices,
        SearchCounts(
            search=mode,
            listed=len(listed),
            added=tuple((source, len(group)) for source, group in added.items()),
            pruned=tuple(sorted(pruned.items())),
            spilling=sum(tile is not None and spills(tile) for tile in tiles),
        ),
    )


def _candidates(
    selection: Selection, mode: Search, listed: Sequence[Any], neighbours: Iterable[Winner]
) -> Iterator[tuple[CandidateSource, Any]]:
    """Yield candidates with their source; duplicates are possible."""
    inputs, op = selection.kernel_inputs, selection.op_name
    tma = list(selection.tma(selection.templates))
    yield from ((CandidateSource.TMA, choice) for choice in tma)
    for uid in FEW_ROWS_UIDS:
        yield from ((CandidateSource.FEW_ROWS, choice) for choice in selection.few_rows(uid))
    if mode is Search.DEFAULT:
        return
    is_wide = mode is Search.WIDE
    yield from (
        (CandidateSource.SPLITS, choice) for choice in _splits(selection, only_even=is_wide)
    )
    bases = _first_of_each([*listed, *tma])
    for winner in neighbours:
        if winner.uid in bases:
            near = choices_for_tiles(bases[winner.uid], inputs, op, [dict(winner.kwargs)])
            yield from ((CandidateSource.NEIGHBOURS, choice) for choice in near)
    if op in WIDE_SEARCH_OPS:
        for base in bases.values():
            wide = choices_for_tiles(base, inputs, op, wide_search_tiles(inputs))
            yield from ((CandidateSource.TILES, choice) for choice in wide)
    if mode is not Search.EXHAUSTIVE:
        return
    for omitted in selection.omitted_templates:
        templates = [omitted, *selection.templates]
        bases |= _first_of_each([*selection.candidates(omitted), *selection.tma(templates)])
    for base in bases.values():
        exhaustive = exhaustive_choices(base, inputs, op)
        yield from ((CandidateSource.EXHAUSTIVE, choice) for choice in exhaustive)


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


def _identity(choice: Any) -> tuple[str, frozenset[tuple[str, str]]]:
    kwargs = choice.params.to_kwargs()
    return choice.template.uid, frozenset((name, str(value)) for name, value in kwargs.items())


class _LaunchLimits:
    """The limits of the device of *selection* for the launch of a candidate."""

    def __init__(self, selection: Selection) -> None:
        self._capacity = capacity_of(selection.kernel_inputs.device())
        self._operands = {
            uid: gemm_operands_of(selection.kernel_inputs, by_tma=uid in TMA_UIDS)
            for uid in _PRUNED
        }
        self._operands[SWAPPED.uid] = self._operands[SWAPPED.uid][::-1]

    def missing_for(self, choice: Any) -> Resource | None:
        """Return the resource that a launch of *choice* certainly lacks, None if it may fit."""
        tile = tile_of(choice)
        operands = self._operands.get(choice.template.uid)
        if tile is None or operands is None:
            return None
        return missing_resource(tile, *operands, self._capacity)
