"""Fill the tables of README.md and of tables/README.md from the JSON results; draw four charts.

    python docs/benchmarks/render.py            # write the pages and the charts
    python docs/benchmarks/render.py --check    # exit code 1 where a page is not up to date

A page has its tables between ``<!-- NAME -->`` and ``<!-- end -->``; NAME is a function of `PARTS`.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from warmup.core.trial import geomean

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
TABLES = HERE.parents[1] / "tables"
PAGES = (HERE / "README.md", HERE.parents[1] / "README.md", TABLES / "README.md")
STARTS = {
    "two Llama-8B-shaped layers": ("llama-h200", "llama-tuned-h200"),
    "the example MLP on a CPU": ("mlp-cpu",),
}
CHARTED = {
    "default": "default mode",
    "max-autotune": "cold max-autotune",
    "table": "table",
    "bundle-graphs": "table and bundle",
}
MODES = ("max-autotune", "deterministic", "table")  # of starts whose outputs are hashed
COLOURS = ("#9aa5b1", "#c8553d", "#3b6ea5", "#2a9d8f")
_PART = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Document = Mapping[str, Any]


@cache
def load(name: str) -> Any:
    """Return the result *name*."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def named(prefix: str) -> list[str]:
    """Return the names of all results that begin with *prefix*, sorted."""
    return sorted(path.stem for path in RESULTS.glob(f"{prefix}*.json"))


def comparisons() -> Iterator[tuple[str, Document]]:
    """Yield every committed comparison with its name, those of the zoo in CUDA graphs."""
    for name in named(""):
        document = load(name)
        if "variants" in document and "origin" in document:
            yield name, document
        elif "race" in document:
            yield name, document["race"]["launches"]["cudagraph"]


def grid(head: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    """Return *rows* as a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def times_of(bucket: Document) -> dict[str, float]:
    """Return the median device time of each variant in *bucket*, in microseconds."""
    return {each["name"]: each["median_us"] for each in bucket["variants"]}


def ratio(times: Mapping[str, float], variant: str, base: str) -> str:
    """Return how many times faster *variant* is than *base*; empty where either was not timed."""
    both = variant in times and base in times
    return f"{times[base] / times[variant]:.2f}" if both else ""


def microseconds(value: float) -> str:
    """Return *value* with four digits, and never as a power of ten."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def sizes_of(bucket: Document) -> str:
    """Return the sizes of *bucket* as text."""
    return ",".join(f"{name}={size}" for name, size in bucket["bucket"].items())


def zoo() -> str:
    """Return the times of each bucket of the zoo in CUDA graphs, and the ratios of the table."""
    names = ("default", "max-autotune", "table")

    def rows() -> Iterator[Sequence[object]]:
        for name in named("zoo-"):
            raced = load(name)["race"]["launches"]["cudagraph"]
            device = raced["origin"]["runtime"]["device"]["name"].split()[1]
            for bucket in raced["buckets"]:
                times = times_of(bucket)
                own = [microseconds(times[each]) if each in times else "" for each in names]
                over = [ratio(times, "table", base) for base in ("default", "max-autotune")]
                yield (f"{name.split('-', 2)[2]}, {device}", sizes_of(bucket), *own, *over)

    return grid(("model, GPU", "bucket", *names, "over default", "over max-autotune"), rows())


def zoo_means() -> str:
    """Return the geometric means of the ratios of the zoo, and the worst bucket, by base."""
    buckets = [
        times_of(bucket)
        for name in named("zoo-")
        for bucket in load(name)["race"]["launches"]["cudagraph"]["buckets"]
    ]

    def rows() -> Iterator[Sequence[object]]:
        for base in ("default", "max-autotune"):
            ratios = [times[base] / times["table"] for times in buckets if base in times]
            yield (base, len(ratios), f"{geomean(ratios):.3f}", f"{min(ratios):.3f}")

    return grid(("table over", "buckets", "geometric mean", "worst"), rows())


def builds() -> str:
    """Return the seconds of builds by stage, and of the cold start of max-autotune."""
    stages = ("compiling", "bare_trials", "fused_trials", "launch_searches", "regions")
    names = [stage.replace("_", " ") for stage in stages]
    found = load("builds-h200")["builds"]
    rows = (
        [
            *(one["model"], one["seconds"], one["cold_max_autotune_s"] or "-"),
            *(one["stages"].get(stage, 0.0) for stage in stages),
        ]
        for one in found
    )
    return grid(["model", "build, s", "max-autotune's start, s", *names], rows)


def starts() -> str:
    """Return the kinds of start that the README does not have: medians of their seconds."""

    def rows() -> Iterator[Sequence[object]]:
        for model, every in started().items():
            for kind in dict.fromkeys(start["start"] for start in every):
                if model in charted_starts() and kind in CHARTED:
                    continue
                runs = [start for start in every if start["start"] == kind]
                seconds = statistics.median(start["seconds"] for start in runs)
                yield (model, kind, len(runs), f"{seconds:.1f}", runs[-1]["benchmarks"])

    return grid(("model", "start", "runs", "seconds", "benchmarks"), rows())


def terminal() -> str:
    """Return what `terminal.py` saw the commands print."""
    return "\n".join(["```console", *load("terminal")["lines"], "```", ""])


def started() -> dict[str, list[Mapping[str, Any]]]:
    """Return the starts of each model, those of the results ``starts-NAME`` by their name."""
    files = {**STARTS, **{name.removeprefix("starts-"): (name,) for name in named("starts-")}}
    return {
        model: [start for name in names for start in load(name)["starts"]]
        for model, names in files.items()
    }


def charted_starts() -> dict[str, dict[str, tuple[float, int]]]:
    """Return the seconds and benchmarks of a start by kind, of models with all four kinds."""
    found = {}
    for model, every in started().items():
        runs = {kind: [one for one in every if one["start"] == kind] for kind in CHARTED}
        if all(runs.values()):
            found[model] = {
                kind: (statistics.median(one["seconds"] for one in ran), ran[0]["benchmarks"])
                for kind, ran in runs.items()
            }
    return found


def hashed() -> dict[str, dict[str, tuple[int, int, float]]]:
    """Return by mode and bucket how many hashes how many starts have, and a call's microseconds."""
    found: dict[str, dict[str, tuple[int, int, float]]] = {mode: {} for mode in MODES}
    for name in ("bits-modes-h200", "bits-tokens-h200"):
        for mode, buckets in found.items():
            own = [start for start in load(name)["starts"] if start["start"] == mode]
            for place, bucket in enumerate(own[0]["hashes"]):
                us = statistics.median(start.get("call_us", [0, 0])[place] for start in own)
                hashes = {start["hashes"][bucket] for start in own}
                buckets[bucket.replace(",", ", ")] = (len(hashes), len(own), us)
    return found


def readme_starts() -> str:
    """Return the starts of the README: seconds and benchmarks of each kind over empty caches."""

    def rows() -> Iterator[Sequence[object]]:
        for model, kinds in charted_starts().items():
            yield (model, *(f"{kinds[kind][0]:.1f} s, {kinds[kind][1]}" for kind in CHARTED))

    return grid(("model", *CHARTED.values()), rows())


def compared() -> str:
    """Return the times of the comparisons that are not of the zoo, but for the products."""

    def rows() -> Iterator[Sequence[object]]:
        for name, document in comparisons():
            if name.startswith(("zoo-", "compare-products-")):
                continue
            origin = document["origin"]
            device = origin["runtime"]["device"]["name"].split()[1]
            for bucket in document["buckets"]:
                times = times_of(bucket)
                cells = [microseconds(times[each]) if each in times else "" for each in names]
                best = min(("table", "table-padded"), key=lambda each: times.get(each, 1e9))
                over = [ratio(times, best, base) for base in ("default", "max-autotune")]
                launched = "" if origin["launch"] == "cudagraph" else ", launched"
                model = origin["model"].rpartition(":")[2]
                yield (f"{model}, {device}", f"{sizes_of(bucket)}{launched}", *cells, *over)

    names = ("default", "max-autotune", "table", "table-padded")
    over = ("best table over default", "over max-autotune")
    return grid(("model, GPU", "bucket", *names, *over), rows())


def products() -> str:
    """Return the ratios of the products of Llama-3-8B by epilogue."""
    groups: dict[str, list[dict[str, float]]] = {}
    for name, document in comparisons():
        if name.startswith("compare-products-"):
            epilogue = document["origin"]["model"].rpartition(":")[2]
            groups.setdefault(epilogue, []).extend(map(times_of, document["buckets"]))

    def rows() -> Iterator[Sequence[object]]:
        for epilogue, buckets in groups.items():
            over = [times["max-autotune"] / times["table"] for times in buckets]
            bases = ("eager", "default", "max-autotune")
            best = [min(times[base] for base in bases) / times["table"] for times in buckets]
            behind = sum(value < 1 / 1.02 for value in best)
            yield (epilogue, len(buckets), f"{geomean(over):.3f}", f"{min(over):.3f}", behind)

    head = ("epilogue", "products", "over max-autotune", "worst", "over 2 % behind the fastest")
    return grid(head, rows())


def mixes() -> str:
    """Return each way to serve a mix of sizes: its start, benchmarks, graphs and total time."""

    def rows() -> Iterator[Sequence[object]]:
        for name in ("shapes-llama-h200", "shapes-swiglu-h200"):
            document = load(name)
            model = document["settings"]["model"].rpartition(":")[2]
            for run in document["runs"]:
                if "total_us" not in run:
                    continue
                total = statistics.median(run["total_us"]) / 1000
                device = statistics.median(run["device"]["total_us"]) / 1000
                graphs = run["graphs_at_start"] + run["recompiles"]
                counts = (run["benchmarks_at_start"] + run["benchmarks"], graphs)
                yield (model, run["way"], *counts, f"{total:.0f}", f"{device:.0f}")

    head = ("model", "way", "benchmarks", "graphs", "total, ms", "on the device, ms")
    return grid(head, rows())


def gains() -> str:
    """Return what each shipped table gains over default mode, with the 95 % interval."""

    def rows() -> Iterator[Sequence[object]]:
        for path, gained in table_gains().items():
            link = f"[`{path.stem}`]({path.relative_to(TABLES)})"
            for name, variant, speedup in gained:
                spelled = "{value:.2f} ({low:.2f} to {high:.2f})".format(**speedup)
                yield (path.parent.name, link, variant, spelled, f"`{name}`")

    return grid(("device", "table", "variant", "over default mode", "result"), rows())


def table_gains() -> dict[Path, list[tuple[str, str, Mapping[str, float]]]]:
    """Return, for each shipped table, the results with its digest: name, variant and speedup."""
    by_digest: dict[str, list[tuple[str, Document]]] = {}
    for name, document in comparisons():
        by_digest.setdefault(document["origin"]["digest"], []).append((name, document))
    found = {}
    for path in sorted(TABLES.rglob("*.json")):
        digest = json.loads(path.read_text(encoding="utf-8"))["provenance"]["digest"]
        found[path] = [
            (name, each["name"], each["speedup"])
            for name, document in by_digest.get(digest, ())
            for each in document["variants"]
            if each["name"] in {"table", "table-padded"} and each["speedup"]
        ]
    return found


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        *(terminal, readme_starts, zoo, zoo_means, builds, starts),
        *(compared, products, mixes, gains),
    )
}


def fill(text: str) -> str:
    """Return *text* with each of its parts written anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}{found[3]}", text)


def draw() -> None:
    """Draw the charts of starts, of the zoo, and of the mix of sizes."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    def bars(name: str, title: str, label: str, values: Mapping[str, float], line: float) -> None:
        figure, axes = plt.subplots(figsize=(8, 0.5 + 0.26 * len(values)), layout="constrained")
        places = axes.barh(list(values), list(values.values()), color="#3b6ea5")
        axes.bar_label(places, fmt="%.3g", padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.1, y=0.01)
        axes.tick_params(labelsize=8)
        figure.suptitle(title, fontsize=11)
        axes.set(xlabel=label)
        axes.spines[["top", "right"]].set_visible(False)
        if line:
            axes.axvline(line, color="black", linewidth=0.8)
        figure.savefig(HERE / "charts" / f"{name}.png", dpi=110)
        plt.close(figure)

    found = charted_starts()
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.8 * len(found)), layout="constrained")
    for place, (kind, words) in enumerate(CHARTED.items()):
        rows = [row + 0.2 * (place - 1.5) for row in range(len(found))]
        own = [kinds[kind] for kinds in found.values()]
        times = [seconds for seconds, _ in own]
        drawn = axes.barh(rows, times, height=0.19, color=COLOURS[place], label=words)
        said = [f"{seconds:.3g} s, {count} benchmarks" for seconds, count in own]
        axes.bar_label(drawn, said, padding=3, fontsize=7)
    axes.set_yticks(range(len(found)), found)
    axes.invert_yaxis()
    axes.margins(x=0.2, y=0.02)
    axes.tick_params(labelsize=8)
    figure.suptitle("A start from empty caches, one GPU, torch 2.11", fontsize=11)
    axes.set(xlabel="seconds until every bucket was served once")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=4)
    figure.savefig(HERE / "charts" / "start-h200.png", dpi=110)
    plt.close(figure)
    ratios = {}
    for name in named("zoo-"):
        for bucket in load(name)["race"]["launches"]["cudagraph"]["buckets"]:
            times = times_of(bucket)
            words = f"{name.removeprefix('zoo-')} {sizes_of(bucket)}"
            ratios[words] = times["max-autotune"] / times["table"]
    title = "Models of transformers and timm in CUDA graphs, torch 2.11"
    bars("zoo", title, "speed from a table over cold max-autotune", ratios, 1.0)
    runs = [run for run in load("shapes-llama-h200")["runs"] if "total_us" in run]
    totals = {run["way"]: statistics.median(run["total_us"]) / 1000 for run in runs}
    bars("mix-h200", "300 requests of 6 sizes, two Llama-8B-shaped layers, H200", "ms", totals, 0)


def draw_bits() -> None:
    """Draw how many outputs the starts of each mode have, and how fast a call is."""
    import matplotlib.pyplot as plt

    found, of = hashed(), dict(zip(MODES, (COLOURS[1], COLOURS[0], COLOURS[2]), strict=True))
    figure, (bits, speeds) = plt.subplots(
        ncols=2, figsize=(8, 2.6), width_ratios=(3, 2), layout="constrained"
    )
    for place, (mode, buckets) in enumerate(found.items()):
        rows = [row + 0.26 * (place - 1) for row in range(len(buckets))]
        counts, starts, _ = zip(*buckets.values(), strict=True)
        drawn = bits.barh(rows, counts, height=0.24, color=of[mode], label=mode)
        bits.bar_label(drawn, [f"{number} starts" for number in starts], padding=3, fontsize=7)
    bits.set_yticks(range(len(buckets)), buckets)
    bits.set(xlabel="different outputs", xticks=range(3))
    usual = list(found["max-autotune"].values())[-1][2]
    over = {mode: usual / list(buckets.values())[-1][2] for mode, buckets in found.items()}
    drawn = speeds.barh(list(over), list(over.values()), color=[of[mode] for mode in over])
    speeds.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    speeds.set(xlabel=f"speed, {list(buckets)[-1]}", yticks=[])
    for axes in (bits, speeds):
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Four layers of Qwen2.5-7B in fresh processes, H200, torch 2.11", fontsize=11)
    figure.legend(
        *bits.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3
    )
    figure.savefig(HERE / "charts" / "same-bits.png", dpi=110)
    plt.close(figure)


def main() -> None:
    """Write the pages and the charts, or check the pages."""
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES}
    filled = {path: fill(text) for path, text in texts.items()}
    if "--check" in sys.argv:
        sys.exit(filled != texts)
    for path, text in filled.items():
        path.write_text(text, encoding="utf-8")
    draw()
    draw_bits()


if __name__ == "__main__":
    main()
