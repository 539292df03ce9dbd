"""Writes random unaligned products as pad problems, as a document for ``warmup build --problems``.

    python pad_problems.py OUT.json --samples 200 --seed 1 --dtypes f16,bf16,f32
    warmup build --problems OUT.json --out pad.json --timings pad.jsonl

The build compiles each product as it is and padded, tunes the GEMM of either, with what makes an
operand whose padding is free, and times both ways; a second run goes on where the first was
stopped. It needs a GPU: inductor's pad_mm pass asks on no CPU. ``warmup pad collect`` draws these
products, leaves out those that the pass would not measure, and makes no table.

``warmup/prediction/pad/sampling.py`` has what is drawn.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

from driver import say

from warmup.prediction.pad.sampling import MOST_GIB, draw_pad_keys, parse_dtypes


def document(samples: int, seed: int, dtypes: tuple[str, ...], gib: float) -> dict[str, object]:
    """Return the misses document of *samples* different products."""
    keys = itertools.islice(draw_pad_keys(seed, dtypes, gib), samples)
    problems = [
        {"key": key, "kind": "pad", "reason": "drawn", "count": 1, "source": "random"}
        for key in keys
    ]
    return {"schema": 1, "digests": [], "problems": problems}


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtypes", default="f16,bf16,f32")
    parser.add_argument("--gib", type=float, default=MOST_GIB)
    given = parser.parse_args()
    found = document(given.samples, given.seed, parse_dtypes(given.dtypes), given.gib)
    given.out.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    say(f"{given.out}: {given.samples} problems")


if __name__ == "__main__":
    main()
