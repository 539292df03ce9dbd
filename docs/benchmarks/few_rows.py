"""Times two kernels for few rows against the library: how near the memory's rate a matmul comes.

    python docs/benchmarks/few_rows.py --out OUT.json [--rows 1,8,32] [--limit 300]

The kernels are plain Triton, outside of inductor: what a template of ours could reach. Weights
[N, K] are bf16, read from memory (a copy for each call of a CUDA graph, behind a cleared L2), and
each output is compared with one in f32. Results are written after each product. Kernels are
compiled first, in processes of their own; no product begins after ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from decode import LAYERS
from few_rows_kernels import dots_kernel, sum_kernel, swapped_kernel

from warmup.measuring.headstart import Events

WORKERS = 14
MOST_SPLITS = 8
FEWEST_BLOCKS, MOST_BLOCKS_OF_SPLITS = 64, 1056  # 1056: eight for each SM of an H100
REGISTERS = 2**16  # of f32 that a block of the dot product may hold
WRONG = 0.01  # relative error


@dataclass(frozen=True)
class Tile:
    """A config; ``kind`` is ``dots`` (a sum of products) or ``swapped`` (weights on the left)."""

    kind: str
    block_n: int
    block_k: int
    stages: int
    warps: int
    splits: int = 1

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


DOTS = [
    Tile("dots", *sizes)
    for sizes in (
        *((1, 1024, 1, 4), (1, 2048, 1, 4), (1, 2048, 2, 8), (2, 1024, 1, 4), (2, 2048, 1, 8)),
        *((4, 512, 1, 4), (4, 1024, 1, 4), (4, 1024, 2, 8), (4, 1024, 3, 4), (8, 256, 3, 4)),
        *((8, 512, 1, 4), (8, 512, 2, 4), (8, 512, 4, 4), (16, 256, 1, 4), (16, 256, 2, 4)),
        *((16, 512, 1, 8), (32, 128, 2, 4)),
    )
]
SWAPPED = [
    Tile("swapped", *sizes, splits)
    for sizes in (
        *((16, 256, 4, 1), (16, 256, 6, 2), (16, 512, 3, 2), (32, 128, 4, 2), (32, 128, 6, 2)),
        *((32, 256, 4, 2), (64, 64, 4, 4), (64, 64, 6, 4), (64, 128, 3, 4), (64, 128, 4, 4)),
        *((64, 128, 5, 4), (64, 128, 6, 4), (64, 256, 3, 4), (64, 256, 4, 4), (128, 64, 4, 4)),
        *((128, 64, 6, 4), (128, 128, 3, 4), (128, 128, 4, 4), (128, 128, 4, 8), (128, 128, 5, 4)),
    )
    for splits in (1, 2, 4, 8)
]


def launch(tile: Tile, x: Any, w: Any, y: Any, parts: Any) -> None:
    """Enqueue ``y = x @ w.T`` with *tile*."""
    (rows, k), n = x.shape, w.shape[0]
    sizes = (rows, n, k, x.stride(0), w.stride(0))
    even = k % tile.block_k == 0
    how = {"num_warps": tile.warps, "num_stages": tile.stages}
    blocks = triton.cdiv(n, tile.block_n)
    block = {"BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "EVEN_K": even}
    if tile.kind == "dots":
        power = triton.next_power_of_2(rows)
        dots_kernel[(blocks,)](x, w, y, *sizes, ROWS=power, **block, **how)
        return
    block |= {"BLOCK_M": max(16, triton.next_power_of_2(rows)), "SPLITS": tile.splits}
    swapped_kernel[(blocks, tile.splits)](x, w, y, parts, *sizes, **block, **how)
    if tile.splits > 1:
        grid = (triton.cdiv(rows * n, 512),)
        sum_kernel[grid](parts, y, rows * n, SPLITS=tile.splits, BLOCK=512, num_warps=4)


def tiles_for(rows: int, n: int) -> list[Tile]:
    """Return the tiles to time for a product of *n* columns."""
    dots = [tile for tile in DOTS if rows == 1 or tile.block_n * tile.block_k * rows <= REGISTERS]
    found = dots if rows <= MOST_SPLITS else []
    for tile in SWAPPED:
        blocks = -(-n // tile.block_n) * tile.splits
        if blocks >= FEWEST_BLOCKS and (tile.splits == 1 or blocks <= MOST_BLOCKS_OF_SPLITS):
            found = [*found, tile]
    return found


def operands(rows: int, n: int, k: int, copies: int) -> tuple[Any, list[Any], Any, Any]:
    """Return x, copies of w, y and the memory for parts."""
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    w = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / k**0.5 for _ in range(copies)]
    y = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    return x, w, y, torch.empty(MOST_SPLITS * rows * n, device="cuda")


def compile_some(share: list[tuple[Tile, int, int, int]]) -> None:
    """Compile kernels into Triton's cache; the ones that fail, fail again where they are timed."""
    for tile, rows, n, k in share:
        x, (w,), y, parts = operands(rows, 256 if n % 16 == 0 else 241, k, 1)
        try:
            launch(tile, x, w, y, parts)
        except Exception as error:  # noqa: BLE001  of any kind: out of shared memory, the compiler's
            sys.stderr.write(f"{tile}: {error}\n")


def copies_of(nbytes: int) -> int:
    """Return how many copies of weights a CUDA graph reads, so that none is in the L2 again."""
    return max(2, min(16, -(-(2**29) // nbytes)))


def timed_us(call: Callable[[int], object], copies: int) -> float:
    """Return the median time of a call in a CUDA graph of *copies* calls, from a cold L2."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(0)
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(copies):
            call(number)
    other = torch.empty(2**27, dtype=torch.uint8, device="cuda")

    def once() -> float:
        other.zero_()
        events = Events()
        torch.cuda._sleep(200_000)
        with events:
            graph.replay()
        return events.elapsed_us / copies

    once()
    return statistics.median(once() for _ in range(7))


def measure(rows: int, n: int, k: int) -> dict[str, Any]:
    """Return the library's time and that of each tile, or why a tile has none."""
    copies = copies_of(2 * n * k)
    x, weights, y, parts = operands(rows, n, k, copies)
    expected = x.float() @ weights[0].float().t()
    times: dict[str, float | str] = {}
    for tile in tiles_for(rows, n):
        y.fill_(float("nan"))
        try:
            launch(tile, x, weights[0], y, parts)
            torch.cuda.synchronize()
            error = ((y.float() - expected).norm() / expected.norm()).item()
            if not error < WRONG:
                times[str(tile)] = f"wrong: {error}"
                continue
            us = timed_us(lambda i, tile=tile: launch(tile, x, weights[i], y, parts), copies)
            times[str(tile)] = round(us, 2)
        except Exception as error:  # noqa: BLE001  of any kind: this tile alone has no time
            times[str(tile)] = f"{type(error).__name__}: {error}"[:120]
    library = timed_us(lambda i: torch.mm(x, weights[i].t(), out=y), copies)
    moved = 2 * (n * k + rows * (n + k))
    return {
        "n": n,
        "k": k,
        "m": rows,
        "bytes": moved,
        "library_us": round(library, 2),
        **best(times),
    }


def best(times: dict[str, float | str]) -> dict[str, Any]:
    """Return *times* with the least of them."""
    ranked = sorted((us, tile) for tile, us in times.items() if isinstance(us, float))
    return {"best_us": ranked[0][0], "best": ranked[0][1], "times": times}


def main() -> None:
    """Compile, measure and print, as long as the time lasts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--limit", type=float, default=300.0)
    asked = parser.parse_args()
    begun, counts = time.monotonic(), [int(word) for word in asked.rows.split(",")]
    # One product whose sizes are multiples of 16, and one that is not, stand for all.
    jobs = [
        (tile, rows, n, k)
        for rows in counts
        for n, k in ((4096, 4096), (50257, 768))
        for tile in tiles_for(rows, n)
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=spawn) as pool:
        list(pool.map(compile_some, [jobs[first::WORKERS] for first in range(WORKERS)]))
    device = torch.cuda.get_device_name()
    machine = {"device": device, "torch": torch.__version__, "triton": triton.__version__}
    found: dict[str, Any] = {"machine": machine, "products": []}
    for n, k in LAYERS:
        for rows in counts:
            if time.monotonic() - begun > asked.limit:
                continue
            found["products"].append(one := measure(rows, n, k))
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
            rate = one["bytes"] / 1000 / one["best_us"]
            said = (
                f"{n}x{k} m={rows}: library {one['library_us']} us, {one['best']} {one['best_us']}"
            )
            sys.stdout.write(f"{said} us, {rate:.0f} GB/s\n")


if __name__ == "__main__":
    main()
