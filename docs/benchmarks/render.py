"""Write docs/benchmarks/README.md from the JSON results beside it.

python docs/benchmarks/render.py [--check]
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import grown
import mixes
import proof
import searches
import shorter_starts
import start_chart
import winners
from proof import grid, load

HERE = Path(__file__).resolve().parent
HEAD = """# Benchmarks

Made by `docs/benchmarks/render.py` from the JSON files in `results/`; each holds the machine, the
versions, the buckets and every single start. The commands are `docs/benchmarks/run.py` (build a
table, then measure starts, each in a fresh process with empty caches, kinds interleaved),
`docs/benchmarks/gpu.sh` (the GPU set), `docs/benchmarks/micro.py` and
`docs/benchmarks/dispatch.py`.

How to read it: *compile all* is the time of `install` and from `torch.compile` until the first
outputs of all buckets, without importing torch and loading the model, but with importing inductor,
which either does; *of it compiling* is the sum of the first calls of all buckets. Medians where a
start ran more than once. *Benchmarks* are measurements that inductor ran meanwhile, *of GEMMs*
those of GEMM selection and of fusing into GEMMs, *configs timed* those counted at
`CachingAutotuner.bench`, below warmup's own watch. *Peak* is the largest amount of device memory
allocated until then. *Steady* is the median time of one call afterwards, per bucket: on a GPU the
replay of a CUDA graph, on CPU the wall clock.

`default`, `max-autotune` (`max-autotune-no-cudagraphs`) and `max-autotune-gemm`
(`options={"max_autotune_gemm": True}`) are torch alone; on CPU those with autotuning, and
`default-freezing`, run with freezing. `mega-cache` loads what a `max-autotune` start saved with
`torch.compiler.save_cache_artifacts`. `table` is plain `torch.compile` under an installed table,
`table-max-autotune` the same in mode `max-autotune-no-cudagraphs`, and `table-warm` a second start
over the first one's caches.
"""


def gemm_benchmarks(start: dict[str, Any]) -> int:
    """Return how many of a start's measurements were about GEMMs."""
    sites = start["benchmarks_by_site"]
    return sum(n for site, n in sites.items() if site.startswith("select") or site == "fusion")


def table_of(record: dict[str, Any], also: Any = None) -> str:
    """Return the starts of one record as a Markdown table; *also* adds starts of another run."""
    starts = [*record["starts"], *(also["starts"] if also else [])]
    kinds = list(dict.fromkeys(start["start"] for start in starts))
    head = (
        *("start", "runs", "compile all, s", "of it compiling", "benchmarks", "of GEMMs"),
        *("configs timed", "hits / misses", "peak, MB", "steady, us"),
    )
    rows = []
    for kind in kinds:
        group = [start for start in starts if start["start"] == kind]
        seconds = statistics.median(start["seconds"] for start in group)
        first = group[0]
        lookups = f"{first['hits']} / {first['misses']}" if "hits" in first else ""
        columns = zip(*(start["steady_us"] for start in group), strict=True)
        steady = ", ".join(f"{statistics.median(c):.0f}" for c in columns)
        peak = f"{first['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in first else ""
        compiling = statistics.median(sum(start["seconds_by_bucket"]) for start in group)
        cells = [kind, len(group), f"{seconds:.1f}", f"{compiling:.1f}"]
        cells += [first["benchmarks"], gemm_benchmarks(first)]
        cells += [first.get("configs_timed", ""), lookups, peak, steady]
        rows.append(cells)
    return grid(head, rows)


def section(name: str, title: str, note: str, also: str | None = None) -> str:
    """Return one result as a section of the page; empty when it was never measured."""
    record = load(name)
    if record is None:
        return ""
    machine, build = record["machine"], record["build"]
    device = machine["device"]
    facts = (
        f"{device['name']} ({device['arch']}), {machine['cores']} cores, torch {machine['torch']}, "
        f"triton {machine['triton'] or 'none'}, Python {machine['python']}; "
        f"buckets {', '.join(map(str, record['seqlens']))}; `{record['model']}`, "
        f"dtype {record.get('dtype', 'own')}."
    )
    built = build and (
        f"Build: {build['seconds']:.0f} s, {build['rows']} rows, {build['candidates']} candidates "
        f"measured, {build['failed']} of them failed; largest relative L2 error against eager "
        f"{build['largest_error']:.1e}; digest `{build['digest'][:16]}`."
    )
    return "\n\n".join(
        filter(
            None,
            [f"## {title}", facts, built, table_of(record, load(also) if also else None), note],
        )
    )


def micro() -> str:
    """Return the small numbers of warmup itself."""
    record = load("micro")
    if record is None:
        return ""
    rows = [
        ("`import warmup` (`-X importtime`), without torch", f"{record['import_ms']} ms", "60 ms"),
        ("loading a table of 10,000 rows", f"{record['load_10000_rows_ms']} ms", "150 ms"),
        ("one lookup", f"{record['find_us']} us", "50 us"),
        ("one lookup with its event", f"{record['find_and_event_us']} us", "50 us"),
    ]
    if (found := load("dispatch")) is not None:
        for policy, one in found["policies"].items():
            what = f"`warmup.compile`, policy {policy}: added to a compiled call, in the median"
            rows.append((what, f"{one['added_us']} us (to {one['plain_us']} us)", "5 us"))
    machine = record["machine"]
    facts = f"Best of five, Python {machine['python']}, {machine['cores']} cores."
    return "\n\n".join(
        ["## warmup itself", facts, grid(("what", "measured", "target"), rows), NOTES["micro"]]
    )


LAYERS = [f"compare-unaligned-{layer}-h200" for layer in ("gpt2head", "whisperhead", "vitpatch")]
CLASSES = [
    f"compare-products-{one}-{part}-h200"
    for one in ("plain", "biasgelu", "silumul", "residual")
    for part in (1, 2)
]
PARALLEL = ["parallel-h200", "parallel-swiglu-h200"]
GROWTH = {
    "growth-h200": "H200: more layers, more buckets",
    "growth-cpu": "CPU: more layers, more buckets",
}
SHAPES = ["shapes-llama-h200", "shapes-swiglu-h200"]
NOTES = json.loads((HERE / "notes.json").read_text(encoding="utf-8"))


def page() -> str:
    """Return the whole page."""
    sections = [
        section("llama-h200", "H200: two Llama-8B-shaped layers", NOTES["llama"]),
        shorter_starts.from_bundle("bundle-h200", "H200: a start from a bundle", NOTES["bundle"]),
        shorter_starts.together(PARALLEL, "H200: buckets compiled together", NOTES["parallel"]),
        mixes.mixes(SHAPES, "H200: a mix of sizes", NOTES["shapes"]),
        section(
            "swiglu-h200", "H200: the unaligned SwiGLU MLP", NOTES["swiglu"], "swiglu-cold-h200"
        ),
        section("mlp-h200", "H200: the example MLP", NOTES["mlp-h200"]),
        section("vision-linear-h200", "H200: Linear(3420 -> 1280)", NOTES["vision"]),
        section("mlp-cpu", "CPU: the example MLP", NOTES["mlp-cpu"]),
        micro(),
    ]
    sections = [
        proof.comparison(
            "compare-llama-h200", "H200: whole Llama-8B-shaped layers, compared", NOTES["compare"]
        ),
        proof.comparison(
            "compare-swiglu-h200", "H200: the unaligned SwiGLU MLP, compared", NOTES["padded"]
        ),
        winners.unaligned(LAYERS, "H200: unaligned layers", NOTES["unaligned"]),
        winners.epilogues(
            CLASSES, "H200: the products of Llama-3-8B, with epilogues", NOTES["epilogues"]
        ),
        searches.as_it_runs(
            "searches-products-h200",
            "H200: what measuring products as they run changes",
            NOTES["as-it-runs"],
        ),
        searches.one_product(
            "searches-one-product-h200", "H200: one product in three searches", NOTES["searches"]
        ),
        searches.spilling("searches-spilling-h200", "H200: tiles that spill", NOTES["spilling"]),
        proof.products("bench-mm-h200", "H200: ten matrix products", NOTES["products"]),
        proof.layers("bench-layers-h200", "H200: layers", NOTES["layers"]),
        proof.two_builds(
            "two-builds-llama-h200", "H200: the Llama table, built twice", NOTES["twice"]
        ),
        *(grown.growth(name, title, NOTES[name]) for name, title in GROWTH.items()),
        proof.bad_candidates(
            "bad-candidates-h200", "H200: candidates that misbehave", NOTES["bad"]
        ),
        *sections,
    ]
    return "\n\n".join([HEAD.rstrip(), *filter(None, sections)]) + "\n"


def main() -> None:
    target = HERE / "README.md"
    if "--check" in sys.argv:
        sys.exit(0 if target.read_text(encoding="utf-8") == page() else 1)
    winners.draw_charts(CLASSES)
    for name in GROWTH:
        grown.draw_charts(name)
    mixes.draw_charts(SHAPES)
    start_chart.draw_chart()
    target.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
