"""What a table is: provenance, policy and rows. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from warmup.core.method import Method, OptionValue
from warmup.core.rows import Row
from warmup.core.runtime import Runtime

SCHEMA_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where rows come from: the device and runtime they were tuned on, by which warmup, when.

    ``created`` is UTC, ISO 8601, of the first row.
    """

    runtime: Runtime
    warmup: str
    created: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How rows were measured, and the inductor options that serving must share.

    ``options`` are inductor config names and values that `install` applies; ``tolerance`` is the
    largest relative L2 error that the build accepted, of a bucket against eager and of a candidate
    against its reference, by dtype.
    """

    mode: str
    options: Mapping[str, OptionValue]
    timing: Method
    seed: int
    tolerance: Mapping[str, float]


def compare_policies(a: Policy, b: Policy) -> tuple[tuple[str, object, object], ...]:
    """Return each field in which two policies differ, with both values."""
    fields: list[tuple[str, object, object]] = [
        (f"policy {name}", getattr(a, name), getattr(b, name)) for name in ("mode", "seed")
    ]
    fields += [
        (f"policy timing {name}", getattr(a.timing, name), getattr(b.timing, name))
        for name in ("launch", "l2", "near_tie", "max_spread", "fused_top_k")
    ]
    for what in ("options", "tolerance"):
        mine, theirs = getattr(a, what), getattr(b, what)
        word = what.removesuffix("s")
        fields += [
            (f"policy {word} {name}", mine.get(name), theirs.get(name))
            for name in sorted({*mine, *theirs})
        ]
    return tuple(field for field in fields if field[1] != field[2])


@dataclass(frozen=True, slots=True)
class Table:
    """All rows for one device and runtime, of every kind, by key; a key says its kind."""

    provenance: Provenance
    policy: Policy
    rows: Mapping[str, Row] = field(default_factory=dict)
