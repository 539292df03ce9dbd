"""Sections of the benchmark page about searches for GEMM kernels; `render.py` puts them together.

Each takes one file of `timings.py` and returns Markdown, empty without the file.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proof import grid, load

from warmup.keys.gemm import GEMM

_Problem = Mapping[str, Any]
_TIMES = ("alone, us", "as it runs, us")
_MOST_VALUES = 255  # a thread's accumulator has no more without spilling


def as_it_runs(name: str, title: str, note: str) -> str:
    """Return what measuring products as they will run changed, and what of it spills."""
    record = load(name)
    if record is None:
        return ""
    problems = record["problems"]
    groups = dict.fromkeys(one["group"] for one in problems)
    rows = [(group, *_counts([p for p in problems if p["group"] == group])) for group in groups]
    head = (
        *("class", "products", "library won", "winner not in inductor's list"),
        *("fastest alone did not win", "another winner by times alone"),
    )
    others = [one for one in problems if one["alone"] != one["winner"]]
    gains = [_gain(one) for one in others if one["alone"]["fused_us"]]
    said = (
        "By times of the product alone and the same rule (a band of "
        f"{_percent(record['near_tie'])} for near ties, and the fixed order), {len(others)} of "
        f"{len(problems)} products would have another winner."
    )
    if gains:
        said += (
            f" {len(gains)} of these others were timed as they run too: the winner is "
            f"{statistics.median(gains):.2f} times as fast, median, {min(gains):.2f} to "
            f"{max(gains):.2f}."
        )
    changed_head = ("product", "by times alone", *_TIMES, "winner", *_TIMES, "times as fast")
    changed = [
        (_place(one), *_entry(one["alone"]), *_entry(one["winner"]), _gain_in_words(one))
        for one in others
    ]
    return "\n\n".join(
        filter(
            None,
            [
                f"## {title}",
                _facts(record),
                grid(head, [*rows, ("all", *_counts(problems))]),
                said,
                grid(changed_head, changed) if changed else "",
                "\n".join(_kept(record)),
                _spilling(record),
                note,
            ],
        )
    )


def one_product(name: str, title: str, note: str) -> str:
    """Return what the searches for one product came to, one after the other."""
    record = load(name)
    if record is None:
        return ""
    problems = record["problems"]
    rows, gains = [], []
    for one in problems:
        fastest = min(one["as_it_runs"], key=_as_it_runs_us)
        gains.append(_percent(one["library"]["fused_us"] / fastest["fused_us"] - 1))
        added = _listed(one["searched"]["added"])
        rows.append(
            (
                *(one["group"], one["candidates"], added, sum(one["searched"]["pruned"].values())),
                *(one["near"], f"`{fastest['choice']}`", f"{fastest['fused_us']:.2f}"),
                *(f"`{one['winner']['choice']}`", f"{one['winner']['fused_us']:.2f}"),
                f"{one['library']['fused_us']:.2f}",
            )
        )
    near = f"within {_percent(record['near_share'])}"
    head = (
        *("search", "tried", "of them added", "left out", near),
        *("fastest as it runs", "us", "winner", "us", "library, us"),
    )
    won = [one["group"] for one in problems if one["winner"] == one["library"]]
    said = (
        f"The library won in {len(won)} of {len(problems)} searches. A candidate takes its place "
        f"only where it is faster by more than {_percent(record['near_tie'])}; the fastest one was "
        f"faster by {', '.join(gains)}."
    )
    keys = ", ".join(f"`{key}`" for key in dict.fromkeys(one["key"] for one in problems))
    parts = (f"## {title}", f"{keys}. {_facts(record)}", grid(head, rows), said, note)
    return "\n\n".join(filter(None, parts))


def spilling(name: str, title: str, note: str) -> str:
    """Return how fast tiles that spill are, a sample of them, against those that do not."""
    record = load(name)
    if record is None:
        return ""
    rows = []
    for one in record["problems"]:
        times, best = one["spilling_us"], one["fastest_tile"]
        over = [time / best["time_us"] for time in (times[0], statistics.median(times))]
        rows.append(
            (
                *(f"`{one['key'].partition(' | ')[0]}`", f"{one['library']['time_us']:.2f}"),
                *(f"`{best['choice']}`, {best['time_us']:.2f}", len(times), f"{times[0]:.2f}"),
                *(f"{statistics.median(times):.2f}", *(f"{ratio:.1f}x" for ratio in over)),
            )
        )
    head = (
        *("product", "library, us", "fastest tile that fits, us", "tiles that spill"),
        *("fastest, us", "median, us", "fastest over that which fits", "median over it"),
    )
    parts = (f"## {title}", _facts(record), grid(head, rows), note)
    return "\n\n".join(filter(None, parts))


def _facts(record: Mapping[str, Any]) -> str:
    return (
        f"{record['device']}, torch {record['torch']}, triton {record['triton']}; table "
        f"`{record['digest'][:16]}` of {record['created']}; device times, launch "
        f"{record['launch']}, {record['l2']} L2."
    )


def _counts(problems: Sequence[_Problem]) -> tuple[object, ...]:
    sources = Counter(one["winner"]["source"] for one in problems)
    del sources["listed"]
    return (
        len(problems),
        sum(one["winner"] == one["library"] for one in problems),
        f"{sources.total()} ({_listed(sources)})" if sources else 0,
        sum(one["winner"] != one["fastest_alone"] for one in problems),
        sum(one["winner"] != one["alone"] for one in problems),
    )


def _kept(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the library won although another was faster beyond the band, as it runs."""
    for one in record["problems"]:
        best = min(one["as_it_runs"], key=_as_it_runs_us)
        library_us = one["library"]["fused_us"]
        is_library = one["winner"] == one["library"]
        if is_library and library_us > best["fused_us"] * (1 + record["near_tie"]):
            flags = one["flags"]
            said = "it has no row in the table now"
            if flags is not None:
                said = f"flags of its row: {', '.join(f'`{flag}`' for flag in flags) or 'none'}"
            yield (
                f"- {_place(one)}: the library was kept at {library_us:.2f} us, though "
                f"`{best['choice']}` took {best['fused_us']:.2f}; {said}."
            )


def _spilling(record: Mapping[str, Any]) -> str:
    problems = record["problems"]
    tried, near = (sum(one[name] for one in problems) for name in ("candidates", "near"))
    spilling, close = (sum(one[name] for one in problems) for name in ("spilling", "near_spilling"))
    winners = sum(one["winner"]["spills"] for one in problems)
    most = max(one["values_a_thread"] for one in problems)
    return (
        f"Tiles that spill (an accumulator of more than {_MOST_VALUES} values a thread): "
        f"{spilling} of {tried} candidates, {close} of the {near} within "
        f"{_percent(record['near_share'])} of the winner's time alone, and {winners} of "
        f"{len(problems)} winners. The largest accumulator has {most} values a thread."
    )


def _percent(share: float) -> str:
    return f"{round(share * 100, 1):g} %"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {source}" for source, count in counts.items())


def _as_it_runs_us(entry: Mapping[str, Any]) -> float:
    return float(entry["fused_us"])


def _place(problem: _Problem) -> str:
    """Return class and sizes of a product."""
    sizes = GEMM.ingredients(problem["key"])
    return f"{problem['group']} {sizes['n']} x {sizes['k']}, M={sizes['m']}"


def _entry(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    fused_us = entry["fused_us"]
    as_it_runs = "not timed" if fused_us is None else f"{fused_us:.2f}"
    return f"`{entry['choice']}`", f"{entry['time_us']:.2f}", as_it_runs


def _gain(problem: _Problem) -> float:
    return float(problem["alone"]["fused_us"] / problem["winner"]["fused_us"])


def _gain_in_words(problem: _Problem) -> str:
    return "" if problem["alone"]["fused_us"] is None else f"{_gain(problem):.2f}"
