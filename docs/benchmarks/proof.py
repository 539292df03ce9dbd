"""Sections of the benchmark page about measurement and proof; `render.py` puts them together.

Each takes one result file as the commands wrote it (`warmup compare`, `warmup bench`,
`two_builds.py`, `tests/programs/build_with_bad.py`) and returns Markdown, empty without the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
CHARTS = HERE / "charts"
_COLUMNS = ("torch", "triton", "inductor-aten", "inductor-triton", "table")
_MISSED = {
    "bad_zeros": "returns zeros",
    "bad_half": "writes half of its output",
    "bad_tile": "gets a 2 x 2 corner wrong",
    "bad_fault": "writes out of bounds",
    "bad_hang": "never ends",
    "bad_exit": "ends the process",
    "bad_shared_memory": "wants too much shared memory",
    "bad_memory": "wants too much memory",
    "bad_clock": "reports a tenth of its time",
}


def load(name: str) -> Any:
    """Return one result file, or None when it does not exist."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def grid(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def charts(prefix: str) -> str:
    """Return the charts whose file names begin with *prefix*, as images that link to the SVG."""
    found = sorted(CHARTS.glob(f"{prefix}*.png"))
    return "\n\n".join(
        f"[![{path.stem}](charts/{path.name})](charts/{path.stem}.svg)" for path in found
    )


def two_builds(name: str, title: str, note: str) -> str:
    """Return how two builds of one table on one device agree."""
    record = load(name)
    if record is None:
        return ""
    facts = (
        f"{record['device']}, torch {record['torch']}: built at {record['created'][0]} and at "
        f"{record['created'][1]}. Of {record['rows']} rows {record['same_winner']} have the same "
        f"winner; {record['within_band']} of the others differ by no more than the recorded band, "
        f"{len(record['beyond_band'])} by more. The largest difference between the two times of an "
        f"equal winner is {record['largest_drift_of_equal_winners']:.1%}."
    )
    rows = [
        (f"`{row['key']}`", *row["winners"], row["apart"], max(row["bands"]))
        for row in record["differing"]
    ]
    table = grid(("row", "first build", "second build", "apart", "band"), rows) if rows else ""
    return "\n\n".join(filter(None, [f"## {title}", facts, table, note]))


def bad_candidates(name: str, title: str, note: str) -> str:
    """Return what became of candidates that misbehave."""
    record = load(name)
    if record is None:
        return ""
    parts = [f"## {title}"]
    for key, problem in record.items():
        found = {uid.rpartition("::")[2]: said for uid, said in problem["rejected"].items()}
        rows = [
            (f"`{bad}`", what, found[bad][0], found[bad][1].replace("|", "/")[:110])
            for bad, what in _MISSED.items()
        ]
        parts.append(f"`{key}`: the winner is `{problem['winner']}`.")
        parts.append(grid(("candidate", "what it does", "rejected as", "what was said"), rows))
    return "\n\n".join([*parts, note])


def comparison(name: str, title: str, note: str) -> str:
    """Return one `warmup compare` as a section."""
    record = load(name)
    if record is None:
        return ""
    origin, peaks = record["origin"], record["peaks"]
    runtime = origin["runtime"]
    facts = (
        f"{runtime['device']['name']}, torch {runtime['torch']}, triton {runtime['triton']}, "
        f"{origin['created']}; `{origin['model']}`, {origin['rounds']} rounds, launch "
        f"{origin['launch']}; table `{origin['digest'][:16]}`; measured peaks "
        f"{peaks['gbps']:.0f} GB/s and {peaks['tflops'][origin['dtype']]:.0f} TFLOP/s in "
        f"{origin['dtype']}."
    )
    rows = []
    for bucket in record["buckets"]:
        sizes = ", ".join(f"{k}={v}" for k, v in bucket["bucket"].items())
        for cell in bucket["variants"]:
            speedup = cell["speedup"]
            over = (
                f"{speedup['value']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})"
                if speedup
                else ""
            )
            low, high = cell["interval_us"]
            rows.append(
                (
                    *(sizes, cell["name"], f"{cell['median_us']:g}", f"{low:g} to {high:g}"),
                    *(f"{cell['wall_us']:g}", over, f"{cell['tflops']:.0f}"),
                    *(f"{cell['gbps']:.0f}", f"{cell['error']:.1e}"),
                )
            )
    head = ("bucket", "variant", "us", "95 %", "wall us", "over default", "TFLOP/s", "GB/s")
    starts = [
        (
            *(one["name"], f"{one['start']['process_seconds']:.1f}"),
            *(f"{one['start']['call_seconds']:.1f}", one["start"]["benchmarks"]),
            *(_plain(one["start"]["hits"]), _plain(one["start"]["misses"])),
            *(f"{one['start']['peak_bytes'] / 2**20:.0f}", one["verdict"]),
        )
        for one in record["variants"]
        if one["start"]
    ]
    start_head = ("variant", "start, s", "of it calls", "benchmarks", "hits", "misses", "peak MiB")
    return "\n\n".join(
        filter(
            None,
            [
                f"## {title}",
                facts,
                grid((*head, "error"), rows),
                grid((*start_head, "over default, geometric mean"), starts),
                note,
                charts(name),
            ],
        )
    )


def _plain(value: Any) -> Any:
    return "" if value is None else value


def _place(at: dict[str, str]) -> str:
    return f"{at['device']}, torch {at['torch']}, triton {at['triton']}, {at['date']}"


def products(name: str, title: str, note: str) -> str:
    """Return one `warmup bench mm` as a section."""
    record = load(name)
    if record is None:
        return ""
    at, peaks = record["provenance"], record["peaks"]
    facts = (
        f"{_place(at)}; {record['dtype']}, {record['l2']} L2, launch {record['launch']}, "
        f"{record['rounds']} rounds; measured peaks "
        f"{peaks['gbps']:.0f} GB/s and {peaks['tflops'][record['dtype']]:.0f} TFLOP/s. GPU us per "
        "call, in brackets the total with the launch."
    )
    names = [name for name in _COLUMNS if any(name in one["columns"] for one in record["shapes"])]
    rows = []
    for one in record["shapes"]:
        shape, best = one["shape"], one["table_over_best"]
        columns = [one["columns"].get(column) for column in names]
        cells = [f"{c['device_us']:.2f} ({c['total_us']:.1f})" if c else "dropped" for c in columns]
        verdict = f"{best['ratio']:.3f}, {best['verdict']}" if best else ""
        rows.append((f"{shape['m']}x{shape['k']}x{shape['n']}", *cells, one["fastest"], verdict))
    said = ", ".join(f"{n} {verdict}" for verdict, n in record["summary"]["verdicts"].items())
    summary = (
        f"The table's column over the best other one: {said}. Over torch, geometric mean: "
        f"{record['summary']['table_over_torch']:.2f} times the speed."
    )
    head = ("M x K x N", *names, "fastest", "table over best other")
    return "\n\n".join(
        filter(None, [f"## {title}", facts, grid(head, rows), summary, note, charts(name)])
    )


def layers(name: str, title: str, note: str) -> str:
    """Return one `warmup bench layers` as a section: geometric means and charts."""
    record = load(name)
    if record is None:
        return ""
    at = record["provenance"]
    facts = (
        f"{_place(at)}; {record['dtype']}, {record['l2']} L2, launch {record['launch']}, "
        f"{record['rounds']} rounds; measured peak "
        f"{record['peaks']['gbps']:.0f} GB/s; "
        + ", ".join(f"{backend} {version}" for backend, version in record["versions"].items())
        + ". Speed-up over eager, geometric mean over the shapes (how many)."
    )
    means = record["speedup_over_eager"]
    backends = list(dict.fromkeys(one["backend"] for one in means))
    rows = []
    for layer, what in dict.fromkeys((one["layer"], one["pass"]) for one in means):
        found = {
            one["backend"]: f"{one['geomean']:.2f} ({one['shapes']})"
            for one in means
            if (one["layer"], one["pass"]) == (layer, what)
        }
        rows.append((layer or "all", what, *(found.get(backend, "") for backend in backends)))
    counts = Counter(
        (one["backend"], one["layer"], one["reason"]) for one in record["cells"] if one["reason"]
    )
    reasons = [
        f"- `{backend}`, {layer}, {count} of its shapes and passes: {reason}"
        for (backend, layer, reason), count in counts.items()
    ]
    reasons += [f"- `{backend}`: {reason}" for backend, reason in record["missing"].items()]
    dropped = "Dropped out:\n\n" + "\n".join(reasons) if reasons else ""
    return "\n\n".join(
        filter(
            None,
            [
                f"## {title}",
                facts,
                grid(("layer", "pass", *backends), rows),
                dropped,
                note,
                charts(name),
            ],
        )
    )
