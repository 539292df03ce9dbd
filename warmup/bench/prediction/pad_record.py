"""`pad_record_of`: the report of `warmup pad fit` as JSON values, and its chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.prediction.pad.pad_model import pad_leaves_of
from warmup.prediction.pad.strategies import JudgedPads, PadEvaluation

PAD_REPORT_SCHEMA: Final = 1
STRATEGY_WORDS: Final[Mapping[str, str]] = {
    "never": "never",
    "always": "always",
    "pad_mm": "torch's pad_mm",
    "pad_mm_heuristic": "pad_mm, AutoHeuristic",
    "device_model": "device model",
    "best": "measured best",
}
GROUP_WORDS: Final[Mapping[str, str]] = {"drawn": "held-out samples", "layers": "layers of models"}


def pad_record_of(evaluated: PadEvaluation) -> dict[str, Any]:
    """Return *evaluated* as JSON values; docs/reference/cli.md#pad-fit has each."""
    samples, model = evaluated.samples, evaluated.model
    leaves = Counter(leaf.answer.value for leaf in pad_leaves_of(model.tree))
    return {
        "schema": PAD_REPORT_SCHEMA,
        "device": asdict(samples.on),
        "method": samples.method,
        "samples": model.samples,
        "categories": {name: each.samples for name, each in model.categories.items()},
        "sources": dict(Counter(one.source for one in samples.layers)),
        "left_out": dict(samples.left_out),
        "too_little": model.too_little,
        "leaves": dict(sorted(leaves.items())),
        "drawn": _judged_to_json(evaluated.drawn),
        "layers": _judged_to_json(evaluated.layers),
    }


def _judged_to_json(judged: JudgedPads) -> dict[str, Any]:
    return {
        "cases": judged.cases,
        "held_out": judged.held_out,
        "unsure": judged.unsure,
        "strategies": {name: asdict(outcome) for name, outcome in judged.outcomes.items()},
    }


def pad_charts(record: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the chart of the document *record*: the gain of each strategy, with its worst case."""
    groups = [name for name in GROUP_WORDS if record[name]["cases"]]
    on = record["device"]
    note = "; ".join(
        (
            f"{on['device']}, torch {on['torch']}, triton {on['triton']}, {record['method']}",
            *(f"{GROUP_WORDS[name]}: {record[name]['held_out']}" for name in groups),
        )
    )
    series = tuple(
        Series(name=words, values=tuple(_gain(record[group], name) for group in groups))
        for name, words in STRATEGY_WORDS.items()
        if name != "never"
    )
    return {
        "gain": Chart(
            title="Speed of pad decisions over never padding",
            subtitle="Higher is better, 1 is never padding. Geometric means.",
            x_label="cases (their number)",
            y_label="speed over never padding",
            groups=tuple(f"{GROUP_WORDS[name]} ({record[name]['cases']})" for name in groups),
            series=series,
            reference=("never", 1.0),
            note=note,
        )
    }


def _gain(judged: Mapping[str, Any], name: str) -> float | None:
    outcome = judged["strategies"].get(name)
    return None if outcome is None else float(outcome["gain"])
