"""`record_of`: the held-out report of `warmup fit` as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from warmup.prediction.evaluation import Evaluation
from warmup.prediction.held_out import TOPS, HeldOut, HeldOutProblem, mean_log, share_of
from warmup.prediction.training import RANDOM

REPORT_SCHEMA: Final = 1
_P90, _P95 = 0.90, 0.95
SLOWER: Final = 1.03  # than the library: what serving must not be
PERCENTILES: Final = ("p10", "median", "p90")


def record_of(evaluated: Evaluation) -> dict[str, Any]:
    """Return *evaluated* as JSON values; docs/reference/cli.md#fit has each."""
    training, held_out = evaluated.training, evaluated.device_model
    models = [*training.models]
    sections = {"device_model": held_out, **evaluated.compared}
    return {
        "schema": REPORT_SCHEMA,
        "device": asdict(training.on),
        "method": training.method,
        "problems": len(training.problems),
        "times": sum(len(one.times_us) for one in training.problems),
        "models": {
            name: sum(one.source == name for one in training.problems)
            for name in sorted({one.source for one in training.problems})
        },
        "held_out": evaluated.how,
        "left_out": dict(training.left_out),
        "scattered": training.scattered,
        "too_little": evaluated.model.too_little,
        "chooser": evaluated.model.chooser,
        "fitted_to": {"problems": evaluated.model.problems, "method": evaluated.model.method},
        **{name: summary_of(one) for name, one in sections.items()},
        "by_model": {
            name: {key: summary_of(one.of(name)) for key, one in sections.items()}
            for name in models
            if held_out.of(name).problems
        },
        "errors_by_time": _errors_by_time(held_out.problems),
        "regret_by_size": _regret_by_size(held_out.problems),
    }


def summary_of(held_out: HeldOut) -> dict[str, Any]:
    """Return errors, regrets and what serving would do, of the problems inside of the range."""
    sure = held_out.sure
    errors = sorted(abs(math.expm1(error)) for one in sure for error in one.errors)
    served = [one for one in sure if one.is_predicted]
    return {
        "problems": len(held_out.problems),
        "unsure": len(held_out.problems) - len(sure),
        "times": len(errors),
        "error": {
            "median": _rounded(share_of(errors, 0.5) if errors else None),
            "p90": _rounded(share_of(errors, _P90) if errors else None),
        },
        "regret": {
            **{f"top_{top}": _spread([one.regrets[top] for one in sure]) for top in TOPS},
            "library": _spread([one.library_regret for one in sure]),
        },
        "served": {
            "predicted": len(served),
            "slower": sum(one.served_gain < 1 / SLOWER for one in served),
            "gain": _rounded(math.exp(mean_log(one.served_gain for one in served))),
            "worst_gain": _rounded(min((one.served_gain for one in served), default=None)),
            "not_measured": sum(one.predicted_gain is None for one in sure),
        },
    }


def _spread(ratios: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(ratios)
    return {
        "mean": _rounded(math.exp(mean_log(ordered)) if ordered else None),
        "p95": _rounded(share_of(ordered, _P95) if ordered else None),
        "worst": _rounded(max(ordered, default=None)),
    }


def _errors_by_time(problems: Sequence[HeldOutProblem]) -> list[dict[str, Any]]:
    """Return predicted over measured time of the candidates, by doublings of the measured time."""
    groups: dict[int, list[float]] = {}
    for one in problems:
        for measured, predicted in one.predicted_us:
            groups.setdefault(math.floor(math.log2(measured)), []).append(predicted / measured)
    return [
        {
            "from_us": 2.0**power,
            "times": len(ratios),
            **{
                name: _rounded(share_of(sorted(ratios), share))
                for name, share in zip(PERCENTILES, (0.1, 0.5, _P90), strict=True)
            },
        }
        for power, ratios in sorted(groups.items())
    ]


def _regret_by_size(problems: Sequence[HeldOutProblem]) -> list[dict[str, Any]]:
    """Return mean regrets by factors of ten of the operations of a problem."""
    groups: dict[int, list[HeldOutProblem]] = {}
    for one in problems:
        sizes = one.problem.sizes
        operations = 2 * sizes.batch * sizes.m * sizes.n * sizes.k
        groups.setdefault(math.floor(math.log10(operations)), []).append(one)
    return [
        {
            "from_operations": 10.0**power,
            "problems": len(group),
            "library": _rounded(math.exp(mean_log(one.library_regret for one in group))),
            **{
                f"top_{top}": _rounded(math.exp(mean_log(one.regrets[top] for one in group)))
                for top in TOPS
            },
        }
        for power, group in sorted(groups.items())
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def charts_note(record: Mapping[str, Any]) -> str:
    """Return the line at the bottom of a chart: device, versions, problems, how held out."""
    on, models = record["device"], record["models"].keys() - {RANDOM}
    of_random = " and random ones" if RANDOM in record["models"] else ""
    return (
        f"{on['device']}, torch {on['torch']}, triton {on['triton']}; {record['problems']} problems"
        f" of {len(models)} models{of_random}, {record['times']} times; held out: "
        f"{record['held_out']}"
    )
