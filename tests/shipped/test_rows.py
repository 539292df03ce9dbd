"""Shipped rows: spelled as warmup would spell them today, complete and plausible.

A claim yields what contradicts it. Each must complain of a table whose rows are damaged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Row, Scope
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM, GemmProblem, ProductProblem, parse_epilogue
from warmup.keys.grouped import GROUPED, GroupedProblem
from warmup.keys.kind import Kind
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD, WEIGHT, PadProblem, features_of, parse_weight, winner_of
from warmup.keys.reduction import REDUCTION, SPLIT
from warmup.keys.registry import ingredients_of, kind_of, work_of
from warmup.measuring.selection import NEAR_TIE
from warmup.table.review import Level, review, review_table
from warmup.table.schema import Table
from warmup.table.store import read

Claim = Callable[[str, Row, Table], Iterator[str]]

# Their candidates are made and timed in the build's process.
SEARCHED = (LAUNCH, CONVOLUTION, GROUPED, REDUCTION)
ELEMENT_FACTOR = 10  # tolerances that one element may be away (docs/explanation/measurement.md)
ROUNDING_US = 0.002
ROUNDING = 0.002  # of four digits


@dataclass(frozen=True)
class Form:
    """What winners of a family look like: uid, kwargs that each has, and whether it is hashed."""

    uid: str
    kwargs: frozenset[str] = frozenset()
    is_hashed: bool = False


_TILE = frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps"})
_CONFIG = frozenset({"XBLOCK", "num_stages", "num_warps"})
FORMS = {
    Family.EXTERN: Form(r"aten::\w+"),
    Family.TEMPLATE: Form(r"triton::\w+", _TILE, is_hashed=True),
    Family.LAUNCH: Form("pointwise|reduction|persistent_reduction|split_scan", _CONFIG),
    Family.PAD: Form("padded|as_is"),
    Family.REDUCTION: Form("persistent|looped"),
    Family.WEIGHT: Form("padded|as_is", frozenset({"features"})),
}
SPLIT_FORM = Form("split", frozenset({"parts"}))
PRODUCTS: Mapping[Kind, type[ProductProblem]] = {
    GEMM: GemmProblem,
    PAD: PadProblem,
    GROUPED: GroupedProblem,
}


def key_is_canonical(key: str, row: Row, table: Table) -> Iterator[str]:
    """The key, parsed by its kind, spells itself; kernels have a hash of what is not in the key."""
    kind = kind_of(key)
    try:
        if kind is GEMM and "~" not in ingredients_of(key)["epilogue"]:
            parse_epilogue(ingredients_of(key)["epilogue"])  # a hash is of what is too long
        if kind in PRODUCTS and PRODUCTS[kind].of_key(key).key != key:
            yield f"would be spelled {PRODUCTS[kind].of_key(key).key}"
        if kind is WEIGHT:
            parse_weight(key)
    except ProblemError as error:
        yield str(error)


def winner_is_whole(key: str, row: Row, table: Table) -> Iterator[str]:
    """The winner has the uid, the parameters and the hash that its family has."""
    winner = row.winner
    form = SPLIT_FORM if kind_of(key) is SPLIT else FORMS[winner.family]
    named = dict(winner.kwargs)
    if winner.family not in kind_of(key).families:
        yield f"a {winner.family} choice answers no {kind_of(key).name} key"
    if re.fullmatch(form.uid, winner.uid) is None:
        yield f"{winner.uid} is no uid of a {winner.family} choice"
    if missing := form.kwargs - named.keys():
        yield f"without {', '.join(sorted(missing))}"
    if named and not form.kwargs:
        yield f"a {winner.family} choice has no parameters"
    if (winner.source_hash is not None) != form.is_hashed:
        yield f"source hash {winner.source_hash} of a {winner.family} choice"
    k = ingredients_of(key).get("k", "")
    is_even = k.isdecimal() and int(k) % int(named.get("BLOCK_K") or 1) == 0
    if named.get("EVEN_K") is True and not is_even:
        yield f"k={k} is no multiple of {named['BLOCK_K']}"


def features_were_tried(key: str, row: Row, table: Table) -> Iterator[str]:
    """Weights are padded to a size that a build tries, or stay as they are."""
    if kind_of(key) is WEIGHT:
        structure, _ = parse_weight(key)
        try:
            features = features_of(structure, row.winner)
        except ProblemError as error:
            yield str(error)
            return
        if row.winner != winner_of(structure, features):
            yield f"{row.winner} for {structure.features} features"


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
    found = row.evidence
    if found.library_us is not None:
        limit = found.library_us * (1 + (found.band or 0)) + ROUNDING_US
        is_slower = found.time_us > limit and not is_left_to_the_host(row, table)
        if is_slower or found.time_us <= 0:
            yield f"{found.time_us} us, and the library default takes {found.library_us} us"
        if row.winner.uid == "as_is" and abs(found.time_us - found.library_us) > ROUNDING_US:
            yield f"as it is in {found.time_us} us, and in {found.library_us} us"


def is_left_to_the_host(row: Row, table: Table) -> bool:
    """Whether a slower winner is one of two that an earlier build chose for the host."""
    is_earlier = any(name.startswith("mlp ") for name, _ in table.provenance.calls)
    return is_earlier and (row.evidence.runner_up_us or math.inf) < row.evidence.time_us


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


def _flops(key: str) -> int | None:
    """Return the operations of the products of *key*; None where they are not known."""
    work = work_of(key)
    return None if work is None else work.flops


def _moved(key: str) -> int | None:
    """Return the bytes of operands and result, each once; None where the key leaves it open."""
    work = work_of(key)
    is_shared = any(sign in key for sign in (" a=any", " b=any", "@"))
    return None if work is None or is_shared else work.moved


RESPELLED = (" m=", " m=0"), (" out=", " alpha=1 out="), (" k=", " l="), ("a=row", "a=row/01")
# For each claim, changes of a part of all rows; text is replaced in all keys.
DAMAGES: Mapping[Claim, Mapping[str, Sequence[Mapping[str, Any]]]] = {
    key_is_canonical: {"key": [{old: new} for old, new in RESPELLED]},
    winner_is_whole: {
        "winner": [
            *({"source_hash": new} for new in (None, "d4b90a54b960e7b3")),
            *({"uid": new} for new in ("triton_mm_12", "mm", "maybe")),
            *({"kwargs": new} for new in ((), (("BLOCK_K", 64), ("EVEN_K", True)))),
        ],
        "key": [{" k=": " k=1"}],
    },
    features_were_tried: {"winner": [{"kwargs": (("features", 3425),)}, {"uid": "maybe"}]},
    has_times: {
        "evidence": [
            *({"spread": None}, {"library_us": None, "rejected": ()}),
            *({"band": new} for new in (None, 0.001)),
        ],
    },
    has_an_error: {"evidence": [{"error": None}, {"error": 0.21}]},
    is_no_slower_than_the_library: {"evidence": [{"library_us": 0.5}]},
    rates_follow_from_the_time: {
        "evidence": [{name: 7.5} for name in ("time_us", "bare_us", "tflops", "gbps")],
    },
}


def complaints(claim: Claim, rows: Iterator[tuple[str, Row]], table: Table) -> list[str]:
    return [f"{key}: {said}" for key, row in rows for said in claim(key, row, table)]


def damaged(table: Table, part: str, new: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    for key, row in table.rows.items():
        if part == "key":
            ((old, text),) = new.items()
            yield key.replace(old, text), row
        else:
            yield key, replace(row, **{part: replace(getattr(row, part), **new)})


def test_every_shipped_row_is_complete_and_plausible(shipped: Mapping[Path, Table]) -> None:
    for path, table in shipped.items():
        assert table.rows, path.name
        for claim in DAMAGES:
            assert complaints(claim, iter(table.rows.items()), table) == [], (path.name, claim)


def test_damaged_rows_are_told(mixed: Table) -> None:
    for claim, parts in DAMAGES.items():
        for part, changes in parts.items():
            for new in changes:
                assert complaints(claim, damaged(mixed, part, new), mixed), (claim, part, new)


def test_no_number_of_a_shipped_table_is_probably_wrong(shipped: Mapping[Path, Table]) -> None:
    """Held against the peaks of its kind of GPU, of an H200 those that were measured alone."""
    folder = Path(__file__).resolve().parents[2] / "tables"
    h200_peaks = read(folder / "nvidia-h200" / "zoo.llama3-8b.bf16.json").provenance.peaks
    for path, table in shipped.items():
        is_without = table.provenance.peaks is None
        found = review_table(table, h200_peaks if is_without else None)
        assert [doubt for doubt in review(found) if doubt.level is Level.WRONG] == [], path.name
        assert found.peaks is not None, path.name
        assert all(one.work is not None for one in found.rows), path.name
