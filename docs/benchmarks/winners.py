"""Sections of the benchmark page about tables against max-autotune; `render.py` puts them together.

Each takes files of `warmup compare` and returns Markdown, empty without them. A ratio is that of
the two printed medians, and its interval comes from the ratios of single rounds, as in `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from proof import CHARTS, charts, grid, load
from targets import verdict

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw
from warmup.bench.compare.comparison import BucketTime, Ratio
from warmup.bench.compare.verdict import ratio
from warmup.core.samples import Samples, geomean

_TUNED, _TABLE, _PADDED = "max-autotune", "table", "table-padded"
_OTHERS = ("eager", "default", _TUNED)
_HEADS = ("Gpt2Head", "WhisperHead")
_HEAD_TARGET = 1.15  # over max-autotune, at the larger M
_WITH_EPILOGUE = ("BiasGelu", "SiluMul", "Residual")
_MOST_SLOWER = 0.02  # than the fastest other variant
_MEAN_TARGET = 1.03  # over max-autotune
_PRODUCTS = "compare-products"
_NOISE = "Two times are within noise where the 95 % intervals of their medians overlap."

_Cells = Mapping[str, BucketTime]  # by variant
_Sizes = tuple[int, int, int]  # n, k, m


def unaligned(names: Sequence[str], title: str, note: str) -> str:
    """Return the comparisons of several layers with padded weights as one section."""
    records = _load(names)
    if not records:
        return ""
    measured = {
        (layer, sizes["seqlen"]): cells
        for layer, record in records.items()
        for sizes, cells in _buckets(record)
    }
    larger = dict(sorted(measured))  # the last of equal keys counts
    rows: list[tuple[object, ...]] = []
    heads: list[str] = []
    slower: list[str] = []
    behind: list[str] = []
    for (layer, m), cells in measured.items():
        over = _over(cells, _PADDED, _TUNED)
        times = [_us(cells, name) for name in (*_OTHERS, _TABLE, _PADDED)]
        rows.append((layer, m, *times, over or "failed"))
        place = f"{layer}, M={m}"
        if layer in _HEADS and m == larger[layer]:
            is_reached = over is not None and over.value >= _HEAD_TARGET
            heads.append(f"{place}: {over or 'failed'}, {verdict(is_reached)}")
        for name in (*_OTHERS, _TABLE):
            if _is_slower(cells, _PADDED, name):
                said = f"{place}: {_over(cells, _PADDED, name)} of the speed of `{name}`"
                (slower if name == _TUNED else behind).append(said)
    said = (
        f"Target: `{_PADDED}` at least {_HEAD_TARGET} times as fast as `{_TUNED}` for the two "
        f"heads at their larger M. {'; '.join(heads)}.\n\n"
        f"Target: `{_PADDED}` nowhere slower than `{_TUNED}` beyond noise. {_NOISE} Slower "
        f"beyond noise: {'; '.join(slower) or f'none of {len(rows)}'}. Slower than another "
        f"variant, beyond noise: {'; '.join(behind) or f'none of {len(rows)}'}."
    )
    head = ("layer", "M", *(f"{name}, us" for name in (*_OTHERS, _TABLE, _PADDED)))
    table = grid((*head, f"{_PADDED} over {_TUNED} (95 %)"), rows)
    parts = (f"## {title}", _facts(records.values()), table, said, note)
    return "\n\n".join(filter(None, parts))


def epilogues(names: Sequence[str], title: str, note: str) -> str:
    """Return the comparisons of products with what follows them, one file a class."""
    records = _load(names)
    if not records:
        return ""
    measured = {one: _products(record) for one, record in records.items()}
    count = sum(map(len, measured.values()))
    slower = [line for one, products in measured.items() for line in _slower(one, products)]
    letters = ", ".join(f"{name[0]} {name}" for name in _OTHERS)
    cell = (
        f"In a cell: us of the fastest of {letters}; us of the table; how many times as fast the "
        "table is."
    )
    target = (
        f"Target: nowhere more than {_MOST_SLOWER * 100:g} % slower than the fastest of the "
        f"three. Slower by more, or failed: {len(slower)} of {count}{':' if slower else '.'}"
    )
    parts = [
        f"## {title}",
        f"{_facts(records.values())} {cell}",
        *(f"{one}:\n\n{_matrix(products)}" for one, products in measured.items()),
        target,
        "\n".join(slower),
        _means(measured),
        note,
        charts(_PRODUCTS),
    ]
    return "\n\n".join(filter(None, parts))


def draw_charts(names: Sequence[str]) -> None:
    """Draw the speed-up over max-autotune by M, a line for each class of products that is there.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    records = _load(names)
    if records:
        draw(_chart(records), CHARTS / f"{_PRODUCTS}-speedup")


def _chart(records: Mapping[str, Mapping[str, Any]]) -> Chart:
    by_class = {one: _speedups(_products(record)) for one, record in records.items()}
    sizes = sorted({m for found in by_class.values() for _n, _k, m in found})
    series = []
    for one, found in by_class.items():
        by_m = [[value for (*_, m), value in found.items() if m == size] for size in sizes]
        series.append(
            Series(
                name=one,
                values=tuple(_gain(values, geomean) for values in by_m),
                low=tuple(_gain(values, min) for values in by_m),
                high=tuple(_gain(values, max) for values in by_m),
            )
        )
    origin = next(iter(records.values()))["origin"]
    here = origin["runtime"]
    return Chart(
        title=f"Products of Llama-3-8B from a table, against {_TUNED}",
        subtitle="bars and numbers: geometric mean over the shapes; lines: from the slowest to "
        f"the fastest of them; launch {origin['launch']}, {origin.get('l2', 'warm')} L2; "
        "higher is better",
        x_label="M",
        y_label="% faster",
        groups=tuple(map(str, sizes)),
        series=tuple(series),
        reference=(_TUNED, 0.0),
        note=f"{here['device']['name']}, torch {here['torch']}, triton {here['triton']}, "
        f"warmup {origin['warmup']}, {origin['created'][:10]}",
    )


def _gain(speedups: Sequence[float], pick: Callable[[Sequence[float]], float]) -> float | None:
    """Return the picked speed-up in percent, None of none."""
    return round((pick(speedups) - 1) * 100, 2) if speedups else None


def _matrix(products: Mapping[_Sizes, _Cells]) -> str:
    """Return one class as a table, shape by M."""
    shapes = dict.fromkeys((n, k) for n, k, _m in products)
    sizes = sorted({m for _n, _k, m in products})
    rows = [
        (f"{n} x {k}", *(_in_words(products.get((n, k, m), {})) for m in sizes)) for n, k in shapes
    ]
    return grid(("N x K", *(f"M={m}" for m in sizes)), rows)


def _in_words(cells: _Cells) -> str:
    best, over = _best(cells), _over(cells, _TABLE, _best(cells))
    if over is None:
        return "failed"
    return f"{_us(cells, best)} {best[0]}; {_us(cells, _TABLE)}; {over.value:.2f}"


def _slower(one: str, products: Mapping[_Sizes, _Cells]) -> Iterator[str]:
    """Yield the products whose table is slower than the fastest other variant by too much."""
    for (n, k, m), cells in products.items():
        best = _best(cells)
        if best not in cells or _TABLE not in cells:
            yield f"- {one} {n} x {k}, M={m}: failed"
        elif cells[_TABLE].median_us > cells[best].median_us * (1 + _MOST_SLOWER):
            noise = "beyond" if _is_slower(cells, _TABLE, best) else "within"
            yield (
                f"- {one} {n} x {k}, M={m}: {_us(cells, _TABLE)} us against {_us(cells, best)} of "
                f"`{best}`, {_over(cells, _TABLE, best)}, {noise} noise"
            )


def _means(measured: Mapping[str, Mapping[_Sizes, _Cells]]) -> str:
    """Return the geometric means over max-autotune, by class and of those with an epilogue."""
    found = {one: list(_speedups(products).values()) for one, products in measured.items()}
    said = ", ".join(
        f"{one} {geomean(values):.3f} ({len(values)} products)"
        for one, values in found.items()
        if values
    )
    together = [value for one in _WITH_EPILOGUE for value in found.get(one, [])]
    missing = [one for one in _WITH_EPILOGUE if not found.get(one)]
    if missing:
        outcome = f"Not all measured: {', '.join(missing)}."
    else:
        mean = geomean(together)
        outcome = f"Measured: {mean:.3f}, {verdict(mean >= _MEAN_TARGET)}."
    return (
        f"Speed over `{_TUNED}`, geometric mean: {said}. Target: at least {_MEAN_TARGET} for the "
        f"three classes with an epilogue together. {outcome} {_NOISE}"
    )


def _load(names: Sequence[str]) -> dict[str, Any]:
    """Return the records that are there, by the name of the class that was compared.

    Of several records of one class with one table, measured alike, the buckets are joined.
    """
    found: dict[str, Any] = {}
    for name in names:
        if record := load(name):
            one = record["origin"]["model"].rpartition(":")[2]
            first = found.setdefault(one, {**record, "buckets": []})
            alike = ("digest", "runtime", "launch", "l2", "rounds", "dtype")
            assert all(first["origin"].get(k) == record["origin"].get(k) for k in alike), name
            first["buckets"] += record["buckets"]
    return found


def _buckets(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, int], _Cells]]:
    """Yield the sizes of each bucket, and its variants; those that disagree with eager are out."""
    for bucket in record["buckets"]:
        cells = {
            one["name"]: BucketTime(
                device=Samples(tuple(one["device_times_us"])),
                wall=Samples(tuple(one["wall_times_us"])),
                error=one["error"],
                limit=one["limit"],
            )
            for one in bucket["variants"]
            if one["agrees"]
        }
        yield bucket["bucket"], cells


def _products(record: Mapping[str, Any]) -> dict[_Sizes, _Cells]:
    return {(s["n"], s["k"], s["m"]): cells for s, cells in _buckets(record)}


def _speedups(products: Mapping[_Sizes, _Cells]) -> dict[_Sizes, float]:
    """Return the table's speed over max-autotune, where both were timed."""
    return {
        sizes: cells[_TUNED].median_us / cells[_TABLE].median_us
        for sizes, cells in products.items()
        if _TUNED in cells and _TABLE in cells
    }


def _best(cells: _Cells) -> str:
    """Return the fastest variant without a table, the first one where none was timed."""
    timed = [name for name in _OTHERS if name in cells]
    return min(timed, key=lambda name: cells[name].median_us, default=_OTHERS[0])


def _over(cells: _Cells, name: str, base: str) -> Ratio | None:
    """Return how many times faster *name* is than *base*; None where one was not timed."""
    both = base in cells and name in cells
    return ratio(cells[base], cells[name]) if both else None


def _is_slower(cells: _Cells, name: str, base: str) -> bool:
    """Whether *name* takes longer than *base*, and the intervals of the medians are apart."""
    both = base in cells and name in cells
    return both and cells[name].interval_us[0] > cells[base].interval_us[1]


def _us(cells: _Cells, name: str) -> str:
    return f"{cells[name].median_us:g}" if name in cells else "failed"


def _facts(records: Iterable[Mapping[str, Any]]) -> str:
    """Return where and how the records were measured, and the table of each."""
    by_place: dict[str, list[str]] = {}
    for record in records:
        origin, here = record["origin"], record["origin"]["runtime"]
        place = (
            f"{here['device']['name']}, torch {here['torch']}, triton {here['triton']}, "
            f"{origin['created'][:10]}; {origin['dtype']}, {origin['rounds']} rounds, launch "
            f"{origin['launch']}, {origin.get('l2', 'warm')} L2; tables"
        )
        said = f"`{origin['digest'][:16]}` ({origin['model'].rpartition(':')[2]})"
        by_place.setdefault(place, []).append(said)
    return " ".join(f"{place} {', '.join(tables)}." for place, tables in by_place.items())
