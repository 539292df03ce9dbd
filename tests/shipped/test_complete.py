"""Shipped evidence is complete: a row says of itself what rows of its kind say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from warmup.core.method import Search
from warmup.core.rows import Rejection, Row, Scope
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.grouped import GROUPED
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.keys.reduction import REDUCTION
from warmup.keys.registry import ingredients_of, kind_of
from warmup.keys.split import SPLIT
from warmup.measuring.trial import NEAR_TIE
from warmup.table.schema import Table
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted((ROOT / "tables").rglob("*.json"))
read_once = functools.cache(read)
Claim = Callable[[str, Row, Table], Iterator[str]]

COUNTED = {"mm", "addmm", "bmm", "baddbmm", "scaled_mm"}  # torch knows their operations
# Their candidates are made and timed in the build's process.
SEARCHED = (LAUNCH, CONVOLUTION, GROUPED, REDUCTION)
ELEMENT_FACTOR = 10  # tolerances that one element may be away (docs/explanation/measurement.md)


def is_counted(key: str, row: Row, table: Table) -> Iterator[str]:
    """Somebody won: not every candidate was rejected."""
    if row.evidence.scope is Scope.BARE and row.evidence.failed >= row.evidence.tried:
        yield f"{row.evidence.failed} of {row.evidence.tried} rejected, and one won"


def has_times(key: str, row: Row, table: Table) -> Iterator[str]:
    """Spread and band are there, and the library's time unless candidates were rejected."""
    found, least = row.evidence, table.policy.timing.near_tie
    if kind_of(key) in SEARCHED:
        least = min(least, NEAR_TIE)
    if found.spread is None:
        yield "no spread"
    if found.band is None or found.band < least:
        yield f"band {found.band}, and the least is {least}"
    if found.library_us is None and not found.rejected:
        yield "no time of the library default, and nothing was rejected"


def has_runner_up(key: str, row: Row, table: Table) -> Iterator[str]:
    """There is a runner-up with its time, or no other candidate was left to be one."""
    found = row.evidence
    if (found.runner_up is None) != (found.runner_up_us is None):
        yield f"runner-up {found.runner_up} in {found.runner_up_us} us"
    # Beside the library's nothing else is compiled where it could not be faster.
    is_alone = found.scope is Scope.FUSED or found.tried - found.failed <= 1
    if found.runner_up is None and not is_alone:
        yield f"no runner-up among {found.tried - found.failed}"


def has_an_error(key: str, row: Row, table: Table) -> Iterator[str]:
    """A product was compared with its reference; its largest error is within the tolerance."""
    if kind_of(key) is not GEMM:
        return
    out, error, tolerance = ingredients_of(key)["out"], row.evidence.error, table.policy.tolerance
    limit = 0.0 if out.startswith(("i", "u")) else tolerance.get(out)
    if limit is not None and row.evidence.scope is Scope.FUSED:
        limit = max(limit, *tolerance.values())
    if limit is None:
        return
    if error is None:
        yield f"no error, though {out} has a tolerance"
    elif error > limit * ELEMENT_FACTOR:
        yield f"error {error}, and the tolerance of {out} is {limit}"


def has_rates(key: str, row: Row, table: Table) -> Iterator[str]:
    """A product on a GPU says its rates, its share of the peak and the clock."""
    if kind_of(key) is not GEMM or table.provenance.runtime.device.type == "cpu":
        return
    names = ["gbps", "peak_share", "clock_mhz"]
    names += ["tflops"] if ingredients_of(key)["op"] in COUNTED else []
    yield from (f"no {name}" for name in names if getattr(row.evidence, name) is None)


def has_its_scope(key: str, row: Row, table: Table) -> Iterator[str]:
    """Times with what follows a product have the time alone beside them, and others have not."""
    found, is_fused, kind = row.evidence, row.evidence.scope is Scope.FUSED, kind_of(key)
    if kind is not SPLIT and is_fused != (found.bare_us is not None):
        yield f"bare time {found.bare_us} with the scope {found.scope}"
    is_done = kind in (PAD, SPLIT) or (kind is GEMM and table.policy.timing.fused_top_k)
    if is_fused and not is_done:
        yield "measured with what follows, which the policy does not do"


def was_searched(key: str, row: Row, table: Table) -> Iterator[str]:
    """Only for a product on a GPU is there more than the default search."""
    is_wider = row.evidence.search is not Search.DEFAULT
    if is_wider and (kind_of(key) is not GEMM or table.provenance.runtime.device.type == "cpu"):
        yield f"a search that is {row.evidence.search}"


CLAIMS: tuple[Claim, ...] = (
    is_counted,
    has_times,
    has_runner_up,
    has_an_error,
    has_rates,
    has_its_scope,
    was_searched,
)
DAMAGES = [
    ("library", is_counted, {"rejected": ((Rejection.CRASHED, 20),)}),
    ("library", has_times, {"spread": None}),
    ("launch", has_times, {"band": None}),
    ("pad", has_times, {"band": 0.01}),
    ("library", has_times, {"library_us": None}),
    ("library", has_runner_up, {"runner_up": None}),
    ("weight", has_runner_up, {"runner_up_us": None}),
    ("launch", has_runner_up, {"runner_up": None, "runner_up_us": None}),
    ("template", has_an_error, {"error": None}),
    ("fused", has_an_error, {"error": None}),
    ("template", has_an_error, {"error": 0.21}),
    *(("template", has_rates, {name: None}) for name in ("tflops", "gbps", "peak_share")),
    ("fused", has_rates, {"clock_mhz": None}),
    ("fused", has_its_scope, {"bare_us": None}),
    ("template", has_its_scope, {"bare_us": 14.0}),
    ("launch", has_its_scope, {"scope": Scope.FUSED, "bare_us": 6.0}),
    ("pad", was_searched, {"search": Search.WIDE}),
]


def test_every_shipped_row_is_complete() -> None:
    for claim in CLAIMS:
        for path in TABLES:
            table = read_once(path)
            assert table.rows, path.name
            rows = table.rows.items()
            assert [f"{key}: {s}" for key, row in rows for s in claim(key, row, table)] == [], (
                path.name
            )


def test_sound_rows_pass(sound: Table) -> None:
    for claim in CLAIMS:
        assert [said for key, row in sound.rows.items() for said in claim(key, row, sound)] == [], (
            claim
        )


def test_a_row_that_lacks_something_is_told(sound: Table, keys: Mapping[str, str]) -> None:
    """A sound row with other evidence makes the claim complain."""
    for name, claim, changes in DAMAGES:
        key = keys[name]
        row = sound.rows[key]
        damaged = replace(row, evidence=replace(row.evidence, **changes))
        assert list(claim(key, damaged, sound)) != [], (name, claim, changes)


def test_what_follows_is_measured_under_a_policy_that_says_so(
    sound: Table, keys: Mapping[str, str]
) -> None:
    """A fused row under a policy that measures every product alone is told."""
    policy = replace(sound.policy, timing=replace(sound.policy.timing, fused_top_k=0))
    key = keys["fused"]
    assert list(has_its_scope(key, sound.rows[key], replace(sound, policy=policy))) != []


def test_every_claim_can_fail() -> None:
    """No claim about evidence stands here without a damage that it tells."""
    assert {claim for _, claim, _ in DAMAGES} == set(CLAIMS)
