"""The sections of tables/README.md that results decide: what each shipped table gains.

A result counts for a table with the digest that it was measured with. One of an earlier build of
the same file is listed as such; a table without a result is listed as not compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compared import PADDED, TABLE, TUNED, measured
from driver import HERE
from zoo_results import BY_DEFAULT, DEFAULT, over

from warmup.core.samples import geomean
from warmup.keys.registry import kind_of
from warmup.table import Table
from warmup.table.codec import digest_of
from warmup.table.store import read

TABLES = HERE.parents[1] / "tables"
PAGE = TABLES / "README.md"
_BEGIN = "<!-- written by docs/benchmarks/render.py -->"
_END = "<!-- until here -->"
_HEAD = (
    "| Table | torch | Compared | Variant | Buckets | Over default mode | Over max-autotune |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)

Ratios = dict[tuple[str, str], list[float]]  # by variant and what it replaces


def comparisons(results: Path) -> Iterator[dict[str, Any]]:
    """Yield the committed documents of `warmup compare`, those of the zoo among them."""
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            continue
        launches = document.get("race", {}).get("launches", {})
        if "variants" in document and "origin" in document:
            yield document
        elif BY_DEFAULT in launches:
            yield launches[BY_DEFAULT]


def gains_of(documents: list[dict[str, Any]]) -> Ratios:
    """Return the ratios of all buckets of *documents*."""
    found: Ratios = {}
    for document in documents:
        for _, cells in measured({"one": document}):
            for name in (TABLE, PADDED):
                for base in (DEFAULT, TUNED):
                    if ratio := over(cells, name, base):
                        found.setdefault((name, base), []).append(ratio)
    return found


def lines(results: Path, tables: Path) -> Iterator[str]:
    """Yield the lines of all sections."""
    documents = list(comparisons(results))
    devices: dict[str, dict[str, Table]] = {}
    for folder in sorted(path for path in tables.iterdir() if path.is_dir()):
        devices[folder.name] = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
    for device, by_name in devices.items():
        yield from (f"**{device}**", "", *_HEAD)
        for name, table in by_name.items():
            yield from _rows_of(device, name, table, documents)
        yield ""
    yield from _differing(devices)


def _rows_of(
    device: str, name: str, table: Table, documents: list[dict[str, Any]]
) -> Iterator[str]:
    digest, torch = digest_of(table), table.provenance.runtime.torch
    own = [each for each in documents if each["origin"]["digest"] == digest]
    earlier = [
        each
        for each in documents
        if (each["origin"]["table"] or "").endswith(f"{device}/{name}.json")
    ]
    head = f"| [`{name}`]({device}/{name}.json) | {torch}"
    if not own and not earlier:
        yield f"{head} | not compared | | | | |"
        return
    found, origin = gains_of(own or earlier), (own or earlier)[0]["origin"]
    graphs = "CUDA graphs" if origin["launch"] == "cudagraph" else "launched one by one"
    when = f"{origin['created'][:10]}, {graphs}{'' if own else ', an earlier build'}"
    for variant in (TABLE, PADDED):
        ratios = [found.get((variant, base), []) for base in (DEFAULT, TUNED)]
        if count := max(map(len, ratios)):
            cells = " | ".join(map(_spell, ratios))
            yield f"{head} | {when} | {variant} | {count} | {cells} |"


def _spell(ratios: list[float]) -> str:
    if not ratios:
        return "not measured"
    return f"{geomean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _differing(devices: dict[str, dict[str, Table]]) -> Iterator[str]:
    """Yield how often two devices have different winners for the same key."""
    names = list(devices)
    for number, a in enumerate(names):
        for b in names[number + 1 :]:
            rows_a, rows_b = (
                {key: row for table in devices[each].values() for key, row in table.rows.items()}
                for each in (a, b)
            )
            common = sorted(rows_a.keys() & rows_b.keys())
            kinds = Counter(kind_of(key).name for key in common)
            changed = Counter(
                kind_of(key).name for key in common if rows_a[key].winner != rows_b[key].winner
            )
            yield f"**Winners of {a} and of {b}** differ, for keys that both have, in:"
            yield ""
            yield from (f"- {kind}: {changed[kind]} of {kinds[kind]} rows" for kind in kinds)
            yield "" if kinds else "- no key is common to both"


def page() -> str:
    """Return tables/README.md with its sections written anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(f"{_BEGIN}\n")
    _, _, after = rest.partition(_END)
    written = "\n".join(lines(HERE / "results", TABLES)).strip()
    return f"{before}{_BEGIN}\n\n{written}\n\n{_END}{after}"
