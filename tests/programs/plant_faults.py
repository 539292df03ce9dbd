"""Serve the example MLP from a table while every hook raises, and print what came of that.

    python plant_faults.py TABLE before|after ON_MISS

The hooks raise ``before`` they do anything, or ``after`` all their work, torch's own included.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import warmup
from warmup.inductor.firewall import Firewall
from warmup.models.loading import load_model

table, when, on_miss = sys.argv[1:]
hooks: set[str] = set()
reached: Counter[str] = Counter()
guard = Firewall.guard


def plant(
    self: Firewall, place: str, function: Any, make: Callable[[Any], Any], plain: Any = None
) -> Callable[..., Any]:
    """As `Firewall.guard`, of a hook that raises."""
    hooks.add(place)

    def make_faulty(original: Any) -> Callable[..., Any]:
        hook = make(original)

        def faulty(*args: Any, **kwargs: Any) -> Any:
            reached[place] += 1
            if when == "after":
                hook(*args, **kwargs)
            raise RuntimeError(f"planted in {place}")

        return faulty

    return guard(self, place, function, make_faulty, plain)


def main() -> None:
    Firewall.guard = plant  # type: ignore[method-assign]  the test's own faults
    model = load_model("examples/mlp.py:MLP").module.eval()
    torch.manual_seed(0)
    x = torch.randn(16, 256)
    with torch.no_grad():
        expected = model(x)
        handle = warmup.install(table, on_miss=on_miss, uncovered="forbid")
        refused = None
        error = None
        try:
            error = (torch.compile(model, dynamic=False)(x) - expected).abs().max().item()
        except Exception as raised:  # noqa: BLE001  printed
            refused = f"{type(raised).__name__}: {raised}".splitlines()[0]
        report = handle.report()
        handle.close()
    internal = Counter[str]()
    for key, count in report.misses.items():
        if key.startswith("hook "):
            internal[key.partition(": ")[0].removeprefix("hook ")] += count
    print(  # noqa: T201  the result
        "RESULT",
        json.dumps(
            {
                "hooks": sorted(hooks),
                "reached": reached,
                "internal": internal,
                "example": next(iter(report.misses), None),
                "error": error,
                "refused": refused,
            }
        ),
    )


if __name__ == "__main__":
    main()
