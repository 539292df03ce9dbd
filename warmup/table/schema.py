"""`Table`: provenance, policy and rows, as plain data. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from warmup.core.call_cost import CallCost
from warmup.core.method import Method, OptionValue
from warmup.core.roofline import Peaks
from warmup.core.rows import Row
from warmup.core.runtime import Runtime

SCHEMA_VERSION: Final = 3
MAX_TABLE_BYTES: Final = 256 * 1024 * 1024  # a table of 100,000 rows has 100 to 200 MB
MAX_ASSUMPTIONS: Final = 64
MAX_ASSUMPTION: Final = 4096  # letters of one of them
MAX_COSTS: Final = 1024
MAX_REASON: Final = 512


@dataclass(frozen=True, slots=True)
class Provenance:
    """The device and runtime that rows were tuned on, the version of warmup, and the time.

    ``created`` is the time of the first row in UTC, ISO 8601. ``peaks`` are the measured peaks of
    the device, None in a table of an earlier warmup. ``assumptions`` are what builds of the table
    took because nobody named it, such as inferred inputs, in the order of the builds. ``calls`` has
    what a call of a bucket costs, by model and bucket, sorted; empty on a CPU.
    """

    runtime: Runtime
    warmup: str
    created: str
    peaks: Peaks | None = None
    assumptions: tuple[str, ...] = ()
    calls: tuple[tuple[str, CallCost], ...] = ()

    def assuming(self, texts: Iterable[str]) -> Provenance:
        """Return this provenance with *texts* among its assumptions, each once, the last 64."""
        union = tuple(dict.fromkeys((*self.assumptions, *texts)))
        return replace(self, assumptions=union[-MAX_ASSUMPTIONS:])

    def costing(self, calls: Iterable[tuple[str, CallCost]]) -> Provenance:
        """Return this provenance with *calls* in place of those of the same name, 1024 at most."""
        union = dict(self.calls) | dict(calls)
        return replace(self, calls=tuple(sorted(union.items())[:MAX_COSTS]))

    def without_costs(self, names: Collection[str]) -> Provenance:
        """Return this provenance without the calls *names*."""
        return replace(self, calls=tuple(call for call in self.calls if call[0] not in names))


# What a policy says was measured everywhere; absent in tables of earlier builds.
SEARCH_FIELDS: Final = {  # by kind
    "launch": "launch_search",
    "reduction": "reduction_search",
    "split": "split_search",
    "grouped_mm": "grouped_search",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How rows were measured, and the inductor options that serving must share.

    ``options`` has the names and values of inductor's config that `install` sets. ``tolerance`` has
    by dtype the largest relative L2 error that the build accepted, of a bucket's output against
    eager mode and of a candidate against its reference. ``searches`` has the kinds of which every
    decision has a row: ``launch``, also where inductor lists one config; ``reduction``, for those
    that may be persistent or looped; ``split``, for those of fixed sizes that inductor's rule
    splits; ``grouped_mm``.
    """

    mode: str
    options: Mapping[str, OptionValue]
    timing: Method
    seed: int
    tolerance: Mapping[str, float]
    searches: frozenset[str] = frozenset()


def compare_policies(a: Policy, b: Policy) -> tuple[tuple[str, object, object], ...]:
    """Return each field in which two policies differ, with both values."""
    fields: list[tuple[str, object, object]] = [
        (f"policy {name}", getattr(a, name), getattr(b, name)) for name in ("mode", "seed")
    ]
    fields += [
        (f"policy {name}", kind in a.searches, kind in b.searches)
        for kind, name in SEARCH_FIELDS.items()
    ]
    fields += [
        (f"policy timing {name}", getattr(a.timing, name), getattr(b.timing, name))
        for name in ("launch", "l2", "near_tie", "max_spread", "fused_top_k")
    ]
    for label, values_a, values_b in (
        ("option", a.options, b.options),
        ("tolerance", a.tolerance, b.tolerance),
    ):
        fields += [
            (f"policy {label} {name}", values_a.get(name), values_b.get(name))
            for name in sorted({*values_a, *values_b})
        ]
    return tuple(field for field in fields if field[1] != field[2])


@dataclass(frozen=True, slots=True)
class Table:
    """All rows for one device and runtime, by key, of every row kind."""

    provenance: Provenance
    policy: Policy
    rows: Mapping[str, Row] = field(default_factory=dict)
    # Kept by `warmup.table.codec`; `dataclasses.replace` does not copy them.
    _digest: str | None = field(default=None, init=False, repr=False, compare=False)
    _ignored: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The JSON pointers of what the file has of features that warmup no longer has."""
        return self._ignored
