"""`peaks_to_json` and `peaks_from_json`: measured peaks as JSON values, and back with checks."""

from __future__ import annotations

import re
from typing import Final

from warmup.core.json_node import Node
from warmup.core.roofline import Peaks
from warmup.core.rows import MAX_INT

_MEMBERS: Final = frozenset({"tflops", "gbps", "clock_mhz", "measured", "clocks"})
_DTYPE: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LOWEST_RATE: Final = 1e-6
_HIGHEST_RATE: Final = 1e9


def peaks_to_json(peaks: Peaks) -> dict[str, object]:
    """Return *peaks* as JSON values."""
    return {
        "tflops": {name: float(rate) for name, rate in peaks.tflops.items()},
        "gbps": float(peaks.gbps),
        "clock_mhz": peaks.clock_mhz,
        "measured": peaks.measured,
        "clocks": dict(peaks.clocks),
    }


def peaks_from_json(node: Node) -> Peaks:
    """Return the peaks in *node*.

    Raises:
        TableFormatError: a value is missing, unknown, or out of its bounds.
    """
    members = node.members(_MEMBERS)
    tflops = {
        _dtype(name, rate): rate.number(_LOWEST_RATE, _HIGHEST_RATE)
        for name, rate in members["tflops"].items()
    }
    clocks = {
        _dtype(name, clock): clock.integer(1, MAX_INT) for name, clock in members["clocks"].items()
    }
    return Peaks(
        tflops=tflops,
        gbps=members["gbps"].number(_LOWEST_RATE, _HIGHEST_RATE),
        clock_mhz=members["clock_mhz"].optional(lambda clock: clock.integer(1, MAX_INT)),
        measured=members["measured"].string(32),
        clocks=clocks,
    )


def _dtype(name: str, node: Node) -> str:
    if _DTYPE.fullmatch(name) is None:
        node.fail("not the name of a dtype")
    return name
