"""Writes random unaligned products as pad problems, as a document for ``warmup build --problems``.

    python pad_problems.py OUT.json --samples 200 --seed 1 --dtypes f16,bf16,f32
    warmup build --problems OUT.json --out pad.json --timings pad.jsonl

The build compiles each product as it is and padded, tunes the GEMM of either, with what makes an
operand whose padding is free, and times both ways; a second run goes on where the first was
stopped. It needs a GPU: inductor's pad_mm pass asks on no CPU.

Half of what is drawn has sizes that are uniform in 1 to 65536. Of the others each size is a power
of two from 2 to 65536, or, with probability 0.25, a number between two powers. Products that need
no padding, or whose operands and result take more than ``--gib``, are thrown away and another is
drawn; so fewer or more than half of the samples have uniform sizes. Each operand is transposed
with probability 0.5, and free, made by an operation before the product, with probability 0.2 if it
is contiguous.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from driver import say

from warmup.core.dtypes import item_bytes
from warmup.keys.gemm import Dim, Layout
from warmup.keys.pad import PadProblem

ALIGNED_BYTES = 16
LARGEST, LARGEST_POWER = 65536, 16
BETWEEN, TRANSPOSED, FREE = 0.25, 0.5, 0.2
GIB = 8.0


def draw_size(chance: random.Random, *, uniform: bool) -> int:
    """Return one size."""
    if uniform:
        return chance.randint(1, LARGEST)
    power = chance.randint(1, LARGEST_POWER)
    if chance.random() >= BETWEEN or power == 1:
        return 2**power
    return chance.randint(2 ** (power - 1) + 1, 2**power - 1)


def draw(chance: random.Random, dtypes: list[str], gib: float) -> str:
    """Return the key of one product that needs padding and fits into *gib* GiB."""
    uniform = chance.random() < 0.5  # of a sample, however often it is drawn again
    while True:
        dtype = chance.choice(dtypes)
        m, n, k = (draw_size(chance, uniform=uniform) for _ in range(3))
        size = item_bytes(dtype)
        alignment = ALIGNED_BYTES // size
        is_aligned = not any(each % alignment for each in (m, n, k))
        if is_aligned or (m * k + k * n + m * n) * size > gib * 2**30:
            continue
        orders = ["col" if chance.random() < TRANSPOSED else "row" for _ in range(2)]
        free = "".join(
            letter
            for letter, order in zip("ab", orders, strict=True)
            if order == "row" and chance.random() < FREE
        )
        return PadProblem(
            op="mm",
            m=Dim.of(m),
            n=Dim.of(n),
            k=Dim.of(k),
            dtype=dtype,
            a=Layout(orders[0]),
            b=Layout(orders[1]),
            free=free,
            fp32="ieee" if dtype == "f32" else None,
        ).key


def document(samples: int, seed: int, dtypes: list[str], gib: float = GIB) -> dict[str, object]:
    """Return the misses document of *samples* different products."""
    chance = random.Random(seed)  # noqa: S311  no secret
    keys: dict[str, None] = {}
    while len(keys) < samples:
        keys[draw(chance, dtypes, gib)] = None
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
    parser.add_argument("--gib", type=float, default=GIB)
    given = parser.parse_args()
    found = document(given.samples, given.seed, given.dtypes.split(","), given.gib)
    given.out.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    say(f"{given.out}: {given.samples} problems")


if __name__ == "__main__":
    main()
