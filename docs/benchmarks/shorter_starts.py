"""Sections of the benchmark page about shorter starts; `render.py` puts them together.

`from_bundle` takes one file of `run.py`, `together` files of `parallel_start.py`; each returns
Markdown, empty without them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proof import grid, load
from targets import at_most, count_of, median_of, none_of

_BUNDLED = ("bundle", "bundle-graphs")
_MEGA, _MEGA_MADE_BY = "mega-cache", "max-autotune"
_MOST_TIME = 0.6  # of Mega-cache's
_MOST_SIZE = 0.1  # of Mega-cache's
_WAYS = ("one after the other", "together")
_EMPTY = "empty"
_MOST_TOGETHER = 0.7  # of one after the other, empty caches

_Start = Mapping[str, Any]


def from_bundle(name: str, title: str, note: str) -> str:
    """Return starts with the compiled kernels of the winners, against torch's own artifacts."""
    record = load(name)
    if record is None:
        return ""
    by_kind: dict[str, list[_Start]] = {}
    for one in record["starts"]:
        by_kind.setdefault(one["start"], []).append(one)
    refused = {
        f"A start of `{one['start']}` refused its bundle and counts for no target: "
        f"{one['bundle_refused']}."
        for one in record["starts"]
        if _is_refused(one)
    }
    parts = (
        f"## {title}",
        _facts(record),
        grid(_START_HEAD, [_start(kind, starts) for kind, starts in by_kind.items()]),
        "\n".join(sorted(refused)),
        grid(_SIZE_HEAD, sizes) if (sizes := _sizes(record)) else "",
        grid(("target", *_BUNDLED), _targets(record, by_kind)),
        note,
    )
    return "\n\n".join(filter(None, parts))


def _facts(record: Mapping[str, Any]) -> str:
    machine, device = record["machine"], record["machine"]["device"]
    digests = dict.fromkeys(one["digest"] for one in record["starts"] if "digest" in one)
    tables = ", ".join(f"`{digest[:16]}`" for digest in digests) or "none"
    return (
        f"{device['name']} ({device['arch']}), {machine['cores']} cores, torch {machine['torch']}, "
        f"triton {machine['triton'] or 'none'}, Python {machine['python']}; "
        f"buckets {', '.join(map(str, record['seqlens']))}; `{record['model']}`, "
        f"dtype {record['dtype']}; table {tables}. Empty caches, but for what a start brings: "
        "`bundle` the compiled kernels of the table's winners, `bundle-graphs` those and the "
        "graphs that default mode compiles under the table. *Process* is the whole process, for "
        "`max-autotune` with saving what `mega-cache` loads. *Importing* is that of inductor; "
        "*installing* has it in it. *Compiling* is the sum of the first calls. In brackets the "
        "shortest and the longest of several."
    )


_START_HEAD = (
    *("start", "runs", "process, s", "compile all, s", "importing, s", "installing, s"),
    *("compiling, s", "benchmarks", "configs timed", "kernels compiled", "graphs from cache"),
    "hits / misses",
)


def _start(kind: str, starts: Sequence[_Start]) -> Sequence[Any]:
    lookups = " / ".join(filter(None, (_count(starts, "hits"), _count(starts, "misses"))))
    installing = [one["install_seconds"] for one in starts if "digest" in one]
    compiling = [sum(one["seconds_by_bucket"]) for one in starts]
    return (
        *(kind, len(starts), _median(starts, "process_seconds"), _median(starts, "seconds", 2)),
        *(_median(starts, "import_seconds"), median_of(installing), median_of(compiling)),
        *(_count(starts, "benchmarks"), _count(starts, "configs_timed")),
        *(_count(starts, "kernels_compiled"), _count(starts, "from_cache"), lookups),
    )


def _median(starts: Sequence[_Start], name: str, digits: int = 1) -> str:
    return median_of([one[name] for one in starts if name in one], digits)


def _count(starts: Sequence[_Start], name: str) -> str:
    return count_of([one[name] for one in starts if name in one])


_SIZE_HEAD = ("what a start brings", "files of kernels", "files of graphs", "MB", "made in, s")


def _sizes(record: Mapping[str, Any]) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = [
        (
            *(kind, one["kernels"], one["graphs"], f"{one['size'] / 1e6:.2f}"),
            f"{one['seconds']:.1f}",
        )
        for kind in _BUNDLED
        if (one := record["bundles"].get(kind))
    ]
    if size := _mega_bytes(record):
        rows.append((_MEGA, "", "", f"{size / 1e6:.2f}", ""))
    return rows


def _mega_bytes(record: Mapping[str, Any]) -> int | None:
    """Return the size of the last artifacts that a start saved; None without any, or empty."""
    sizes = [one["mega_bytes"] for one in record["starts"] if one.get("mega_bytes")]
    return sizes[-1] if sizes else None


def _targets(
    record: Mapping[str, Any], by_kind: Mapping[str, Sequence[_Start]]
) -> list[Sequence[str]]:
    """Return the targets, and of each kind of bundle whether it reached them."""
    found = [[one for one in by_kind.get(kind, []) if not _is_refused(one)] for kind in _BUNDLED]
    mega_s, mega_bytes = _seconds(by_kind.get(_MEGA, [])), _mega_bytes(record)
    bundles = [record["bundles"].get(kind) for kind in _BUNDLED]
    times = [_over(_seconds(starts), mega_s) for starts in found]
    sizes = [_over(one and one["size"], mega_bytes) for one in bundles]
    counts = [[max(one["benchmarks"], one["configs_timed"]) for one in starts] for starts in found]
    compiled = [
        [one["kernels_compiled"] for one in starts if "kernels_compiled" in one] for starts in found
    ]
    return [
        (
            f"compile all, at most {_MOST_TIME} times Mega-cache's",
            *(at_most(time, _MOST_TIME) for time in times),
        ),
        (
            f"size, at most {_MOST_SIZE} times Mega-cache's",
            *(at_most(size, _MOST_SIZE) for size in sizes),
        ),
        ("no benchmark and no config timed", *map(none_of, counts)),
        ("no kernel compiled", *map(none_of, compiled)),
    ]


def _is_refused(start: _Start) -> bool:
    return start.get("bundle_refused") is not None


def _seconds(starts: Sequence[_Start]) -> float | None:
    return statistics.median(one["seconds"] for one in starts) if starts else None


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value / base


def together(names: Sequence[str], title: str, note: str) -> str:
    """Return starts whose buckets compile together, against one after the other; a file a model."""
    records = [record for name in names if (record := load(name)) is not None]
    if not records:
        return ""
    said = (
        "Seconds of compiling and calling every bucket once by `warmup.compile`, after the table "
        "was installed and the model loaded: medians, in brackets the shortest and the longest. "
        "Each start is a process of its own. Warm caches are those that the start before left. "
        f"Target: together at most {_MOST_TOGETHER} times one after the other, with empty caches."
    )
    return "\n\n".join([f"## {title}", said, *map(_ways, records), note])


_WAY_HEAD = (
    *("caches", "buckets", "runs", "seconds", "benchmarks", "recompiles", "hits / misses"),
    *("Triton kernels", "graphs from cache"),
)


def _ways(record: Mapping[str, Any]) -> str:
    """Return one model: where it ran, every way and cache, and what became of the target."""
    case, starts = record["case"], record["starts"]
    first = starts[0]
    facts = (
        f"`{case['model']}`, buckets {', '.join(map(str, case['seqlens']))}, policy "
        f"`{case['policy']}`, mode {case['mode'] or 'default'}, dtype {case['dtype'] or 'own'}, "
        f"table {'`' + Path(case['table']).name + '`' if case['table'] else 'none'}; "
        f"{first['device']}, torch {first['torch']}, {first['threads']} compile threads; "
        f"installing, which imports inductor, took {_median(starts, 'install_seconds', 1)} s, and "
        f"loading the model {_median(starts, 'load_seconds', 1)} s{_pause(case)}:"
    )
    rows, ratios = [], {}
    for caches in dict.fromkeys(one["caches"] for one in starts):
        of_way = {
            way: [one for one in starts if (one["way"], one["caches"]) == (way, caches)]
            for way in _WAYS
        }
        rows += [(caches, way, *_way(found)) for way, found in of_way.items()]
        serial_s, parallel_s = (_seconds(of_way[way]) for way in _WAYS)
        ratios[caches] = _over(parallel_s, serial_s)
    others = "".join(
        f" With {caches} caches {ratio:.3f}."
        for caches, ratio in ratios.items()
        if caches != _EMPTY and ratio is not None
    )
    said = (
        "Together over one after the other, empty caches: "
        f"{at_most(ratios.get(_EMPTY), _MOST_TOGETHER)}.{others}"
    )
    return "\n\n".join([facts, grid(_WAY_HEAD, rows), said])


def _pause(case: Mapping[str, Any]) -> str:
    pause = case.get("pause", 0)
    return f", {pause:g} s of it a pause that stands for more to load" if pause else ""


def _way(starts: Sequence[_Start]) -> Sequence[Any]:
    lookups = " / ".join(filter(None, (_count(starts, "hits"), _count(starts, "misses"))))
    return (
        *(
            len(starts),
            _median(starts, "seconds", 2),
            _count(starts, "benchmarks"),
        ),
        *(_count(starts, "recompiles"), lookups, _count(starts, "kernels")),
        _count(starts, "graphs_from_cache"),
    )
