"""Spending the rest of a budget on wider searches, where they promise most."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from warmup.core.method import Search
from warmup.core.rows import Evidence, Row
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.tuning.report import BucketResult

if TYPE_CHECKING:
    from warmup.tuning.session import Build

# Candidates beyond the default's, for a guess: an exhaustive search tries 400 to 2300.
_ADDED: Final[Mapping[Search, int]] = {Search.WIDE: 40, Search.EXHAUSTIVE: 800}
_CANDIDATE_S: Final = 0.5  # to compile and measure one, where nothing was tuned now


def widen(
    build: Build,
    results: Sequence[BucketResult],
    search: Search,
    started: float,
    budget_s: float,
) -> tuple[BucketResult, ...]:
    """Search further, as long as there is budget; return *results* with what that changed.

    The products that may gain most come first, those that take longest and are furthest from the
    device's peaks, as many as are likely to fit into what is left since *started*, by the clock of
    `time.monotonic`. When it is used up none is begun.
    """
    rows = build.table.rows
    left = started + budget_s - time.monotonic()
    tried = sum(one.row.evidence.tried for one in build.tuned if kind_of(one.key) is GEMM)
    each_s = (time.monotonic() - started) / tried if tried else _CANDIDATE_S
    keys = choose(results, rows, search, left / (each_s * _ADDED[search]))
    build.search, build.until = search, started + budget_s
    found = list(results)
    order = sorted(range(len(found)), key=lambda place: _first(keys, found[place]))
    for number, place in enumerate(order):
        before = found[place]
        build.chosen = frozenset(keys) & frozenset(before.keys)
        if build.chosen and time.monotonic() < build.until:
            build.reopen(build.chosen)
            after = build.run_bucket(
                before.bucket, number, len(order), weights_padded=before.weights_padded
            )
            found[place] = replace(
                after, tuned=before.tuned + after.tuned, seconds=before.seconds + after.seconds
            )
    return tuple(found)


def choose(
    results: Sequence[BucketResult], rows: Mapping[str, Row], search: Search, most: float
) -> tuple[str, ...]:
    """Return the keys that were searched less far and may gain most, *most* at most, best first."""
    keys = dict.fromkeys(key for result in results for key in result.keys if kind_of(key) is GEMM)
    open_ = [key for key in keys if rows[key].evidence.search.is_narrower_than(search)]
    ranked = sorted(open_, key=lambda key: (-_gain_us(rows[key].evidence), key))
    return tuple(ranked[: max(0, int(most))])


def _gain_us(evidence: Evidence) -> float:
    """Return what a better kernel could save at most: the time above that at the peaks."""
    product_us = evidence.bare_us or evidence.time_us
    return product_us * (1 - min(evidence.peak_share or 0.0, 1.0))


def _first(keys: Sequence[str], result: BucketResult) -> int:
    asked = set(result.keys)
    return next((i for i, key in enumerate(keys) if key in asked), len(keys))
