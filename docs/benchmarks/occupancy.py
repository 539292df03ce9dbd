"""Profiles the kernels that a table serves products with few rows with, by Nsight Compute.

    python docs/benchmarks/occupancy.py OUT.json --table T.json [--rows 1,8,32]

Each of the layers of `decode.py` is compiled and served from the table, and one call of it runs
under `ncu`: with an empty L2, at the clocks as they are. Of each kernel of the call:

- ``us`` and ``rate``: the time under the profiler, which replays a kernel and so differs from a
  timed one, and the share of the memory's rate that the counters saw in it;
- ``read``: the bytes read from memory over those of the operands;
- ``warps``: the share of the warps that a multiprocessor can hold that were active, achieved
  occupancy; ``most_warps``: the share that registers, shared memory and the sizes of blocks allow;
- ``resident``: the blocks of the grid that all multiprocessors hold at once;
- ``ahead``: the bytes of weights that these blocks ask for before they use them, from the tile and
  its stages; only for warmup's own templates, since the library does not say what its tiles are.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from decode import LAYERS, OWN, key_of, tile_text
from driver import now, say, write

METRICS = {
    "ns": "gpu__time_duration.sum",
    "bytes": "dram__bytes_read.sum",
    "rate": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "most_warps": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
    "threads": "launch__block_size",
    "by_registers": "launch__occupancy_limit_registers",
    "by_shared_memory": "launch__occupancy_limit_shared_mem",
    "by_warps": "launch__occupancy_limit_warps",
    "by_blocks": "launch__occupancy_limit_blocks",
}
LIMITS = ("by_registers", "by_shared_memory", "by_warps", "by_blocks")
MARK = "spin_kernel"  # what torch.cuda._sleep launches; it stands before each product
BF16 = 2  # bytes


def problems(rows: str) -> list[tuple[int, int, int]]:
    """Return M, N and K of each product, in the order in which they run."""
    return [(int(m), n, k) for n, k in LAYERS for m in rows.split(",")]


def run_products(asked: argparse.Namespace) -> None:
    """Serve each product from its row of the table, and let the profiler see one call of it."""
    import torch

    import warmup

    # Not strictly: inductor also asks whether to pad, for which the table has no row.
    handle = warmup.install(asked.table)
    profiler = torch.cuda.cudart()
    with torch.no_grad():
        for m, n, k in problems(asked.rows):
            torch._dynamo.reset()
            linear = torch.nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16)
            served = torch.compile(linear, dynamic=False)
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            for _ in range(3):
                served(x)
            torch.cuda.synchronize()
            profiler.cudaProfilerStart()
            torch.cuda._sleep(1000)
            served(x)
            torch.cuda.synchronize()
            profiler.cudaProfilerStop()
    missed = [key for key in handle.report().misses if not key.startswith("pad ")]
    handle.close()
    if missed:
        raise SystemExit(f"the table has no row for {', '.join(missed)}")


def profile() -> str:
    """Return what `ncu` says of the products, as CSV."""
    words = ["ncu", "--profile-from-start", "off", "--clock-control", "none"]
    words += ["--cache-control", "all", "--target-processes", "application-only"]
    words += ["--csv", "--page", "raw", "--print-units", "base"]
    words += ["--metrics", ",".join(METRICS.values())]
    child = [sys.executable, *sys.argv, "--child"]
    done = subprocess.run([*words, *child], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ncu: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def kernels(text: str) -> Iterator[dict[str, Any]]:
    """Yield the name and the metrics of each kernel, from CSV behind lines of the profiler's."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        if row["Kernel Name"]:  # the line of units has none
            values = {name: row[metric].replace(",", "") for name, metric in METRICS.items()}
            yield {"kernel": row["Kernel Name"], **{n: float(v) for n, v in values.items()}}


def products(found: Iterator[dict[str, Any]], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what was seen of each product, in the order in which they ran."""
    calls: list[list[dict[str, Any]]] = []
    for kernel in found:
        if MARK in kernel["kernel"]:
            calls.append([])
        else:
            calls[-1].append(kernel)
    rows = json.loads(asked.table.read_text())["rows"]["gemm"]
    sizes = problems(asked.rows)
    if len(calls) != len(sizes):
        raise SystemExit(f"{len(calls)} calls were profiled, and {len(sizes)} products were run")
    return [
        described(size, kernel, rows[key_of(*size, "bf16")]["winner"])
        for size, call in zip(sizes, calls, strict=True)
        for kernel in call
    ]


def described(
    size: tuple[int, int, int], kernel: Mapping[str, Any], winner: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is kept of a *kernel*, which is all or a part of the product of *size*."""
    m, n, k = size
    multiprocessors = 132  # of an H100 and of an H200
    resident = min(kernel["blocks"], multiprocessors * min(kernel[limit] for limit in LIMITS))
    tile, ahead = winner["uid"], None
    if tile.startswith(OWN):
        sizes = winner["kwargs"]
        tile = tile_text(tile, sizes)
        elements = sizes["BLOCK_N"] * sizes["BLOCK_K"] * max(1, sizes["num_stages"] - 1)
        ahead = int(resident * elements * BF16)
    return {
        "m": m,
        "n": n,
        "k": k,
        "winner": tile,
        "kernel": kernel["kernel"],
        "us": round(kernel["ns"] / 1000, 2),
        "rate": round(kernel["rate"] / 100, 4),
        "read": round(kernel["bytes"] / (BF16 * (n * k + m * k)), 4),
        "warps": round(kernel["warps"] / 100, 4),
        "most_warps": round(kernel["most_warps"] / 100, 4),
        **{name: int(kernel[name]) for name in ("registers", "blocks", "threads", *LIMITS)},
        "resident": int(resident),
        "ahead": ahead,
    }


def main() -> None:
    """Profile the products, or be the process that is profiled."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--child", action="store_true")
    asked = parser.parse_args()
    if asked.child:
        run_products(asked)
        return
    text = profile()
    asked.out.with_suffix(".csv").write_text(text)
    import torch

    found = products(kernels(text), asked)
    write(asked.out, {"created": now(), "device": torch.cuda.get_device_name(), "products": found})
    for one in found:
        say(
            f"{one['m']} {one['n']}x{one['k']} {one['winner']}: {one['us']} us, {one['rate']:.0%}"
            f" of the rate, warps {one['warps']:.0%} of {one['most_warps']:.0%},"
            f" {one['resident']} of {one['blocks']} blocks, ahead {one['ahead']}"
        )


if __name__ == "__main__":
    main()
