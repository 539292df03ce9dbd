"""Shipped evidence is complete and plausible: its numbers agree with each other, key and policy.

A claim yields what contradicts it. Each is also given a damaged row, of which it must complain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from warmup.core.method import Launch, Search
from warmup.core.rows import Flag, Rejection, Row, Scope, is_for_host
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.grouped import GROUPED
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.keys.reduction import REDUCTION, SPLIT
from warmup.keys.registry import ingredients_of, kind_of, work_of
from warmup.keys.weight import WEIGHT
from warmup.measuring.trial import NEAR_TIE
from warmup.table.review import Level, implied_peaks, peaks_in, review, review_table
from warmup.table.schema import Table

Claim = Callable[[str, Row, Table], Iterator[str]]

COUNTED = {"mm", "addmm", "bmm", "baddbmm", "scaled_mm"}  # torch knows their operations
# Their candidates are made and timed in the build's process.
SEARCHED = (LAUNCH, CONVOLUTION, GROUPED, REDUCTION)
ELEMENT_FACTOR = 10  # tolerances that one element may be away (docs/explanation/measurement.md)
MOST_OF_A_PEAK = 1.10  # what is faster is rejected by the build
ROUNDING_US = 0.002
ROUNDING = 0.002  # of four digits
PEAKS_DRIFT = 0.05  # between the peaks of two builds of one table
READABLE_SHARE = 0.1  # from here on three digits say something about the peak


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


def is_steady(key: str, row: Row, table: Table) -> Iterator[str]:
    """Times that shook are flagged, and the library default was kept then."""
    found, most = row.evidence, table.policy.timing.max_spread
    if kind_of(key) is WEIGHT:
        return  # decided for all numbers of rows together
    is_flagged = Flag.UNSTABLE in found.flags
    if found.spread is not None and found.spread > most and not is_flagged:
        yield f"spread {found.spread}, and the most is {most}"
    if is_flagged and found.library_us not in (None, found.time_us):
        yield f"unstable, and not the library default in {found.library_us} us"


def is_ranked(key: str, row: Row, table: Table) -> Iterator[str]:
    """A runner-up is slower, within the band of a near tie, or loses more along the range."""
    found = row.evidence
    if kind_of(key) is WEIGHT or found.runner_up_us is None or Flag.UNSTABLE in found.flags:
        return
    low, high = sorted((found.time_us, found.runner_up_us))
    is_tie = high <= low * (1 + (found.band or 0)) + ROUNDING_US
    if Flag.NEAR_TIE in found.flags and not is_tie:
        yield f"no near tie: {low} and {high} us"
    is_behind = found.time_us > found.runner_up_us * _behind(row)
    if is_behind and Flag.NEAR_TIE not in found.flags and not is_left_to_the_host(row, table):
        yield f"the runner-up is faster: {low} us, not {high} us"


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


def share_is_possible(key: str, row: Row, table: Table) -> Iterator[str]:
    """The share of the peak is above zero and at most so far above one, and flagged where odd."""
    found, share = row.evidence, row.evidence.peak_share
    if share is None:
        return
    is_rounded_away = share == 0 and 0 < (found.gbps or 0) < 1
    if not is_rounded_away and not 0 < share <= MOST_OF_A_PEAK:
        yield f"{share} of the peak"
    if (Flag.OVER_PEAK in found.flags) != (share > 1) and share != 1:
        yield f"{share} of the peak with the flags {found.flags}"
    alone_us = found.bare_us or found.time_us
    is_far_below = share < 0.01 and alone_us > 100
    if (Flag.FAR_BELOW_PEAK in found.flags) != is_far_below and share != 0.01:
        yield f"{share} of the peak in {alone_us} us with the flags {found.flags}"


def share_follows_from_the_rates(key: str, row: Row, table: Table) -> Iterator[str]:
    """All rows of a table are held against the same peaks, those that their shares imply."""
    found, share = row.evidence, row.evidence.peak_share
    if share is None or share < READABLE_SHARE:
        return
    gbps, tflops = _implied_peaks(table)
    of_flops = (found.tflops or 0) / tflops.get(_operand_dtype(key), math.inf)
    implied = max((found.gbps or 0) / gbps, of_flops)
    if abs(implied - share) > share * PEAKS_DRIFT:
        yield f"{share} of the peak, where other rows imply {implied:.3f}"


def time_is_possible(key: str, row: Row, table: Table) -> Iterator[str]:
    """A product is no faster than the operations it asks for and the peak that rows imply."""
    _, tflops = _implied_peaks(table)
    if (flops := _flops(key)) and (peak := tflops.get(_operand_dtype(key))):
        least = flops / 1e6 / peak / MOST_OF_A_PEAK
        time_us = row.evidence.bare_us or row.evidence.time_us
        if time_us < least:
            yield f"{time_us} us, where the peak allows {least:.3f} us"


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


def _operand_dtype(key: str) -> str:
    named = ingredients_of(key)
    return "tf32" if named.get("fp32") == "tf32" else named.get("dtype", "")


_last_peaks: list[tuple[Table, tuple[float, Mapping[str, float]]]] = []


def _implied_peaks(table: Table) -> tuple[float, Mapping[str, float]]:
    """Return GB/s, and TFLOP/s by dtype, that the shares in *table* imply; once for its rows."""
    if not _last_peaks or _last_peaks[0][0] is not table:
        peaks = implied_peaks(table)
        _last_peaks[:] = [(table, (math.inf, {}) if peaks is None else (peaks.gbps, peaks.tflops))]
    return _last_peaks[0][1]


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
    is_counted,
    has_times,
    has_runner_up,
    has_an_error,
    has_rates,
    has_its_scope,
    was_searched,
    is_no_slower_than_the_library,
    is_steady,
    is_ranked,
    rates_follow_from_the_time,
    share_is_possible,
    share_follows_from_the_rates,
    time_is_possible,
    is_along_its_range,
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
    ("template", is_no_slower_than_the_library, {"time_us": 46.4}),
    ("pad", is_no_slower_than_the_library, {"time_us": 39.0}),
    ("template", is_steady, {"spread": 0.11}),
    ("template", is_steady, {"flags": (Flag.UNSTABLE,)}),
    ("template", is_ranked, {"runner_up_us": 14.9}),
    ("template", is_ranked, {"flags": (Flag.NEAR_TIE,)}),
    ("launch", is_ranked, {"runner_up_us": 5.0}),
    *((name, rates_follow_from_the_time, {"time_us": 7.5}) for name in ("library", "template")),
    ("fused", rates_follow_from_the_time, {"bare_us": 12.5}),
    ("library", rates_follow_from_the_time, {"tflops": 35.0}),
    ("template", rates_follow_from_the_time, {"gbps": 900.0}),
    ("library", share_is_possible, {"peak_share": 0.0}),
    ("library", share_is_possible, {"peak_share": 1.11, "flags": (Flag.OVER_PEAK,)}),
    ("library", share_is_possible, {"peak_share": 1.05}),
    ("library", share_is_possible, {"flags": (Flag.OVER_PEAK,)}),
    ("library", share_is_possible, {"peak_share": 0.009, "time_us": 101.0}),
    ("library", share_is_possible, {"flags": (Flag.FAR_BELOW_PEAK,)}),
    ("template", share_follows_from_the_rates, {"peak_share": 0.9}),
    ("fused", share_follows_from_the_rates, {"peak_share": 0.6}),
    ("template", time_is_possible, {"time_us": 5.0}),
    ("fused", time_is_possible, {"bare_us": 15.0}),
    ("pad", time_is_possible, {"time_us": 5.0}),
    ("weight", time_is_possible, {"time_us": 15.0}),
    ("ranged", is_no_slower_than_the_library, {"time_us": 46.0}),
    ("ranged", is_ranked, {"runner_up_us": 42.0}),
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
    policy = replace(sound.policy, timing=replace(sound.policy.timing, fused_top_k=0))
    assert complaints(has_its_scope, replace(sound, policy=policy)) != []


def test_half_of_a_shipped_time_is_told(shipped: Mapping[Path, Table]) -> None:
    for path, table in shipped.items():
        for key, row in table.rows.items():
            if kind_of(key) is GEMM:
                found = row.evidence
                half = {
                    "time_us": found.time_us / 2,
                    "bare_us": found.bare_us and found.bare_us / 2,
                }
                damaged = replace(row, evidence=replace(found, **half))
                assert [*rates_follow_from_the_time(key, damaged, table)], f"{path.name}: {key}"


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
