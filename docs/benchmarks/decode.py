r"""Products with few rows through a table: what each candidate reaches of the memory's rate.

    python docs/benchmarks/decode.py problems MISSES.json [--rows 1,8,32]
    warmup build --problems MISSES.json --out T.json --timings T.jsonl --devices all
    python docs/benchmarks/decode.py ceiling READ.json
    python docs/benchmarks/decode.py results OUT.json --timings T.jsonl --ceiling READ.json \
        [--compared FOLDER/compare.json]

``problems`` writes the products of eight layers with few rows, in bf16, and five of them in fp8
with a scale for each row. ``ceiling`` times kernels that only read weights of these sizes, from
memory, in a CUDA graph. ``results`` puts together what builds and comparisons measured; of a
problem in several files of timings the last counts, and a document of results has what ``ceiling``
wrote too. Shares are of ``--gbps``, the measured bandwidth.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from driver import now, say, write

from warmup.core.samples import geomean
from warmup.diagnostics.misses import encode_problems
from warmup.keys.gemm import Dim, GemmProblem, Layout

LAYERS = (  # N x K
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (3584, 18944)),
    *((1280, 1280), (50257, 768), (152064, 3584)),
)
IN_8_BITS = LAYERS[:5]
ROWS, ROWS_IN_8_BITS = "1,2,4,8,32,64", (1, 8, 32)
OWN, LIBRARY = "triton::warmup_mm_", "aten::"
FP8 = "f8_e4m3fn"
# Programs of a block of so many elements, each of which reads this many blocks.
READS = tuple((block, steps) for block in (2048, 4096, 8192) for steps in (1, 2, 4, 8, 16))
SMALL_BYTES = 1e8
RIVALS = ("eager", "default", "max-autotune")
_KEY = re.compile(r"m=(\d+) n=(\d+) k=(\d+) (\w+)")


def key_of(m: int, n: int, k: int, dtype: str) -> str:
    """Return the key of a linear without a bias, in bf16 or with a scale for each row in fp8."""
    sizes = {"m": Dim.of(m), "n": Dim.of(n), "k": Dim.of(k)}
    layouts = {"a": Layout("row"), "b": Layout("col")}
    if dtype != FP8:
        return GemmProblem(op="mm", **sizes, dtype=dtype, **layouts, out=dtype).key
    scale = f"f32[{m},1]:f32[1,{n}]"
    scaled = {"scale": scale, "fast_accum": True, "out": "bf16"}
    return GemmProblem(op="scaled_mm", **sizes, dtype=dtype, **layouts, **scaled).key


def write_problems(path: Path, rows: list[int]) -> None:
    """Write a misses document: all layers with *rows*, and some in fp8 with rows of their own."""
    keys = [key_of(m, n, k, "bf16") for m in rows for n, k in LAYERS]
    keys += [key_of(m, n, k, FP8) for m in ROWS_IN_8_BITS for n, k in IN_8_BITS]
    path.write_text(encode_problems({(key, "not_in_table"): 1 for key in keys}, ()))
    say(f"{len(keys)} problems")


def measure_ceiling(path: Path) -> None:
    """Time kernels that only read weights in bf16 and fp8, and keep the fastest of each size."""
    import torch
    import triton
    from few_rows import copies_of, timed_us
    from few_rows_kernels import read_kernel

    found = []
    for nbytes in sorted({n * k * size for n, k in LAYERS for size in (1, 2)}):
        count = nbytes // 2
        copies = copies_of(nbytes)
        weights = [torch.ones(count, dtype=torch.bfloat16, device="cuda") for _ in range(copies)]
        times: dict[str, float] = {}
        for block, steps in READS:
            blocks = triton.cdiv(count, block * steps)
            y = torch.empty(blocks, device="cuda")
            how = {"BLOCK": block, "STEPS": steps, "num_warps": block // 1024}

            def read(
                i: int, weights: Any = weights, y: Any = y, blocks: int = blocks, how: Any = how
            ) -> None:
                read_kernel[(blocks,)](weights[i], y, weights[i].numel(), **how)

            times[f"{block}x{steps}"] = round(timed_us(read, copies), 2)
        tile = min(times, key=lambda name: times[name])
        found.append({"bytes": nbytes, "us": times[tile], "tile": tile, "times": times})
        say(f"{nbytes} bytes: {times[tile]} us, {nbytes / times[tile] / 1000:.0f} GB/s, {tile}")
    write(path, {"device": torch.cuda.get_device_name(), "reads": found})


def tile_of(choice: str) -> str:
    """Return the template and the tile of a *choice* of warmup's own, in few words."""
    uid, _, rest = choice.partition("(")
    return tile_text(uid, dict(re.findall(r"(\w+)=(\d+)", rest)))


def tile_text(uid: str, sizes: Mapping[str, object]) -> str:
    """Return the template *uid* of warmup's own and its tile: columns x depth, stages / warps."""
    name = uid.removeprefix(OWN)
    return (
        f"{name} {sizes['BLOCK_N']}x{sizes['BLOCK_K']} {sizes['num_stages']}/{sizes['num_warps']}"
    )


def fastest(candidates: list[dict[str, Any]], prefix: str) -> dict[str, Any] | None:
    """Return the fastest candidate whose name begins with *prefix*, None without one."""
    own = [one for one in candidates if one["choice"].startswith(prefix) and one["time_us"]]
    return min(own, key=lambda one: float(one["time_us"]), default=None)


def product(line: Mapping[str, Any], reads: Mapping[int, float], gbps: float) -> dict[str, Any]:
    """Return what was measured of one problem, a line of a build's timings."""
    found = _KEY.search(line["key"])
    assert found is not None, line["key"]
    m, n, k, size = *(int(found[i]) for i in (1, 2, 3)), 1 if found[4] == FP8 else 2
    moved = size * (n * k + m * k) + 2 * m * n
    candidates = line["candidates"]
    kinds = {"library": LIBRARY, "own": OWN, "dots": f"{OWN}dots", "swapped": f"{OWN}swapped"}
    best = {kind: fastest(candidates, prefix) for kind, prefix in kinds.items()}
    best["inductor"] = fastest(
        [one for one in candidates if not one["choice"].startswith((OWN, LIBRARY))], ""
    )
    assert best["own"] is not None, line["key"]
    times = {f"{kind}_us": one and one["time_us"] for kind, one in best.items()}
    own_us, rivals = times["own_us"], [times["library_us"], times["inductor_us"]]
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": found[4],
        "bytes": moved,
        **times,
        "own": tile_of(best["own"]["choice"]),
        "read_us": reads[n * k * size],
        "share": moved / own_us / 1000 / gbps,
        "of_read": reads[n * k * size] / own_us,
        "over_library": times["library_us"] / own_us,
        "over": min(us for us in rivals if us) / own_us,
    }


def compared(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the times of each bucket of a report of ``warmup compare``, and the gain."""
    for bucket in report["buckets"]:
        us = {one["name"]: one.get("median_us") for one in bucket["variants"]}
        best = min(us[name] for name in RIVALS if us.get(name))
        yield {**bucket["bucket"], **us, "best": best, "over": best / us["table"]}


def means(products: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, for each dtype and number of rows, geometric means over the products."""
    groups = sorted({(one["dtype"], one["m"]) for one in products})
    for dtype, m in groups:
        own = [one for one in products if (one["dtype"], one["m"]) == (dtype, m)]
        names = ("share", "of_read", "over_library", "over")
        values = {name: round(geomean([one[name] for one in own]), 3) for name in names}
        yield {"dtype": dtype, "m": m, "products": len(own), **values}


def text_of(path: Path) -> str:
    """Return the text of a file, which may be compressed."""
    found = path.read_bytes()
    return (gzip.decompress(found) if path.suffix == ".gz" else found).decode()


def results(asked: argparse.Namespace) -> None:
    """Write one document of a build's timings, the ceiling and the comparisons."""
    ceiling = json.loads(asked.ceiling.read_text())
    reads = {one["bytes"]: one["us"] for one in ceiling["reads"]}
    lines = [json.loads(line) for path in asked.timings for line in text_of(path).splitlines()]
    tuned = {one["key"]: one for one in lines if one.get("candidates")}
    products = [product(one, reads, asked.gbps) for one in tuned.values()]
    reports = [json.loads(path.read_text()) for path in asked.compared]
    raced = [one for report in reports for one in compared(report)]
    small = [one["over"] for one in raced if one["n"] * one["k"] * 2 < SMALL_BYTES]
    document = {
        "created": now(),
        "device": ceiling["device"],
        "gbps": asked.gbps,
        "reads": ceiling["reads"],
        "products": sorted(products, key=lambda one: (one["dtype"], one["n"], one["k"], one["m"])),
        "means": list(means(products)),
        "compared": raced,
        "small": round(geomean(small), 3) if small else None,
        "worst": min((one["over"] for one in raced), default=None),
        "runtime": reports[0]["origin"]["runtime"] if reports else None,
    }
    write(asked.out, document)


def main() -> None:
    """Do the step that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("problems", "ceiling", "results"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--timings", type=Path, nargs="+", default=[])
    parser.add_argument("--ceiling", type=Path)
    parser.add_argument("--compared", type=Path, nargs="*", default=[])
    parser.add_argument("--gbps", type=float, default=3106.7)
    asked = parser.parse_args()
    steps: dict[str, Callable[[], None]] = {
        "problems": lambda: write_problems(asked.out, [int(n) for n in asked.rows.split(",")]),
        "ceiling": lambda: measure_ceiling(asked.out),
        "results": lambda: results(asked),
    }
    steps[asked.step]()


if __name__ == "__main__":
    main()
