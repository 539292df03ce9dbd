"""`priced`: what serving sizes by the winners of a range's first size costs.

Each GEMM of the model has a key at either size, for which a table may have measured times; where it
has none, a device model predicts both. Nothing is claimed of a GEMM for which neither knows both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from warmup.diagnostics.recompiles.section import Price, Section
from warmup.prediction.gemm_times import GemmTimePair, GemmTimes, SampledKeys


def priced(section: Section, keys: SampledKeys, times: GemmTimes) -> Section:
    """Return *section* with the price of each given size in each span that serves it."""
    # Layers that repeat ask for the same pair of keys, at each of maybe thousands of sizes.
    asks = functools.cache(times.measured), functools.cache(times.predicted)
    graphs = tuple(
        replace(
            graph,
            spans=tuple(
                replace(span, prices=tuple(_prices(span.tuned_at, span.sizes, keys, *asks)))
                for span in graph.spans
            ),
        )
        for graph in section.graphs
    )
    return replace(section, graphs=graphs)


_KeyPair = tuple[str | None, str | None]
_Ask = Callable[[str, str], GemmTimePair | None]


def _prices(
    tuned_at: int, sizes: Sequence[int], keys: SampledKeys, measure: _Ask, predict: _Ask
) -> Iterator[Price]:
    first = keys.at(tuned_at)
    for size in sizes:
        if size != tuned_at:
            pairs = list(zip(first, keys.at(size), strict=True))
            measured = _total(pairs, measure)
            rest = [pair for pair in pairs if _asked(pair, measure) is None]
            predicted = _total(rest, predict)
            unknown = len(pairs) - measured[0] - predicted[0]
            yield Price(size, len(pairs), *measured, *predicted, unknown=unknown)


def _asked(pair: _KeyPair, ask: _Ask) -> GemmTimePair | None:
    first, key = pair
    return None if first is None or key is None else ask(first, key)


def _total(pairs: Sequence[_KeyPair], ask: _Ask) -> tuple[int, float, float]:
    """Return how many of *pairs* have times, and the sums of the times."""
    known = [pair_us for pair in pairs if (pair_us := _asked(pair, ask)) is not None]
    return len(known), sum(own for own, _ in known), sum(first for _, first in known)
