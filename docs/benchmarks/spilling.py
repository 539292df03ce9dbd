"""Build a table for one product whose search has tiles that spill, a sample of them.

    python spilling.py N K M TABLE.json TIMINGS.jsonl

An exhaustive search of a product with many rows has over two thousand candidates, some 240 of which
spill registers. Here it has what a wide search has, and every fourth of those, drawn with a fixed
seed. `timings.py` makes a summary of what is written.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

from warmup.cli.app import app
from warmup.core.search import CandidateSource
from warmup.inductor.gemm import search
from warmup.inductor.gemm.tile_limits import spills
from warmup.inductor.gemm.tiles import tile_of

SHARE = 0.25


def main(n: str, k: str, m: str, table: str, timings: str) -> None:
    """Tune the product."""
    every, drawn = search._candidates, random.Random(0)  # noqa: S311  the same sample each time

    def some(*asked: Any) -> Iterator[tuple[CandidateSource, Any]]:
        for source, choice in every(*asked):
            tile = tile_of(choice)
            is_spilling = tile is not None and spills(tile)
            if source is not CandidateSource.EXHAUSTIVE or (is_spilling and drawn.random() < SHARE):
                yield source, choice

    search._candidates = some
    words = [f"--dims=n={n};k={k};m={m}", "--search=exhaustive", f"--out={table}"]
    app(["build", "--model=examples/products.py:Plain", *words, f"--timings={timings}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
