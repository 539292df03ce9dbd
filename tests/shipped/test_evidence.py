"""Shipped evidence is complete and plausible: its numbers agree with each other, key and policy.

A claim yields what contradicts it. Each is also given a damaged row, of which it must complain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from warmup.core.method import Launch
from warmup.core.rows import Row, Scope, is_for_host
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.grouped import GROUPED
from warmup.keys.launch import LAUNCH
from warmup.keys.reduction import REDUCTION
from warmup.keys.registry import ingredients_of, kind_of, work_of
from warmup.measuring.trial import NEAR_TIE
from warmup.table.review import Level, peaks_in, review, review_table
from warmup.table.schema import Table

Claim = Callable[[str, Row, Table], Iterator[str]]

# Their candidates are made and timed in the build's process.
SEARCHED = (LAUNCH, CONVOLUTION, GROUPED, REDUCTION)
ELEMENT_FACTOR = 10  # tolerances that one element may be away (docs/explanation/measurement.md)
ROUNDING_US = 0.002
ROUNDING = 0.002  # of four digits


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


def is_no_slower_than_the_library(key: str, row: Row, table: Table) -> Iterator[str]:
    """The winner ties with the library default at least, or loses least along its range."""
    found = row.evidence
    if found.library_us is not None:
        limit = found.library_us * max(1 + (found.band or 0), _behind(row)) + ROUNDING_US
        is_slower = found.time_us > limit and not is_left_to_the_host(row, table)
        if is_slower or found.time_us <= 0:
            yield f"{found.time_us} us, and the library default takes {found.library_us} us"
        if row.winner.uid == "as_is" and abs(found.time_us - found.library_us) > ROUNDING_US:
            yield f"as it is in {found.time_us} us, and in {found.library_us} us"


def is_left_to_the_host(row: Row, table: Table) -> bool:
    """Whether a slower winner is that which the host enqueues faster (`prefer_host`)."""
    is_launched = table.policy.timing.launch is Launch.EAGER and bool(table.provenance.calls)
    return is_launched and is_for_host(row.evidence)


def rates_follow_from_the_time(key: str, row: Row, table: Table) -> Iterator[str]:
    """Rates, times the time alone, are the operations and the bytes that the key spells."""
    found = row.evidence
    if kind_of(key) is not GEMM:
        return
    time_us = found.bare_us or found.time_us
    for name, rate, count in (
        ("TFLOP/s", found.tflops, (_flops(key) or math.nan) / 1e6),
        ("GB/s", found.gbps, (_moved(key) or math.nan) / 1e3),
    ):
        if rate is not None and abs(rate * time_us - count) > count * ROUNDING:
            yield f"{rate} {name} is not {count / time_us:.4g}"


def is_along_its_range(key: str, row: Row, table: Table) -> Iterator[str]:
    """Times along a range are of its ends and of a size between, in order; others have none."""
    named, along = ingredients_of(key), [size for size, _ in row.evidence.along]
    is_ranged = kind_of(key) is GEMM and ".." in named.get("m", "")
    if not is_ranged:
        if along:
            yield f"times at {along}, and no range"
        return
    low, high = map(int, named["m"].split(".."))
    if along != sorted(set(along)) or not along or (along[0], along[-1]) != (low, high):
        yield f"times at {along}, and the range is {low} to {high}"
    if any(ratio is not None and ratio < 1 for _, ratio in row.evidence.along):
        yield "faster than the best"


def _behind(row: Row) -> float:
    """Return how many times the best at its own size a winner may take: more than 1 in a range."""
    own = row.evidence.along[-1][1] if row.evidence.along else None
    return 1.0 if own is None or own == 1.0 else own * (1 + ROUNDING)


def _flops(key: str) -> int | None:
    """Return the operations of the products of *key*; None where they are not known."""
    work = work_of(key)
    return None if work is None else work.flops


def _moved(key: str) -> int | None:
    """Return the bytes of operands and result, each once; None where the key leaves it open."""
    work = work_of(key)
    is_shared = any(sign in key for sign in (" a=any", " b=any", "@"))
    return None if work is None or is_shared else work.moved


CLAIMS: tuple[Claim, ...] = (
    has_times,
    has_an_error,
    is_no_slower_than_the_library,
    rates_follow_from_the_time,
    is_along_its_range,
)
DAMAGES = [
    ("library", has_times, {"spread": None}),
    ("launch", has_times, {"band": None}),
    ("pad", has_times, {"band": 0.01}),
    ("library", has_times, {"library_us": None}),
    ("template", has_an_error, {"error": None}),
    ("fused", has_an_error, {"error": None}),
    ("template", has_an_error, {"error": 0.21}),
    ("template", is_no_slower_than_the_library, {"time_us": 46.4}),
    ("pad", is_no_slower_than_the_library, {"time_us": 39.0}),
    *((name, rates_follow_from_the_time, {"time_us": 7.5}) for name in ("library", "template")),
    ("fused", rates_follow_from_the_time, {"bare_us": 12.5}),
    ("library", rates_follow_from_the_time, {"tflops": 35.0}),
    ("template", rates_follow_from_the_time, {"gbps": 900.0}),
    ("ranged", is_no_slower_than_the_library, {"time_us": 46.0}),
    ("ranged", rates_follow_from_the_time, {"time_us": 22.5}),
    ("ranged", is_along_its_range, {"along": ()}),
    ("ranged", is_along_its_range, {"along": ((257, 1.0), (560, 1.0), (408, 1.0))}),
    ("ranged", is_along_its_range, {"along": ((257, 1.0), (408, 1.0))}),
    ("ranged", is_along_its_range, {"along": ((257, 0.9), (408, 1.0), (560, 1.0))}),
    ("library", is_along_its_range, {"along": ((16, 1.0),)}),
]


def complaints(claim: Claim, table: Table) -> list[str]:
    return [f"{key}: {said}" for key, row in table.rows.items() for said in claim(key, row, table)]


def test_every_shipped_row_is_complete_and_plausible(shipped: Mapping[Path, Table]) -> None:
    for path, table in shipped.items():
        assert table.rows, path.name
        for claim in CLAIMS:
            assert complaints(claim, table) == [], (path.name, claim)


def test_a_damaged_row_is_told_and_a_sound_one_is_not(
    sound: Table, keys: Mapping[str, str]
) -> None:
    """Every claim complains of a table with some damage, and of none without."""
    assert {claim for _, claim, _ in DAMAGES} == set(CLAIMS)
    for claim in CLAIMS:
        assert complaints(claim, sound) == [], claim
    for name, claim, changes in DAMAGES:
        key = keys[name]
        row = sound.rows[key]
        damaged = replace(row, evidence=replace(row.evidence, **changes))
        table = replace(sound, rows={**sound.rows, key: damaged})
        assert complaints(claim, table) != [], (name, claim, changes)


def test_no_number_of_a_shipped_table_is_probably_wrong(shipped: Mapping[Path, Table]) -> None:
    """Held against the peaks of its kind of GPU, of an H200 those that were measured alone."""
    folder = Path(__file__).resolve().parents[2] / "tables"
    h200_peaks = peaks_in(folder / "nvidia-h200" / "zoo.llama3-8b.bf16.json")
    for path, table in shipped.items():
        is_without = table.provenance.peaks is None
        found = review_table(table, h200_peaks if is_without else None)
        assert [doubt for doubt in review(found) if doubt.level is Level.WRONG] == [], path.name
        assert found.peaks is not None, path.name
        assert all(one.work is not None for one in found.rows), path.name
