"""What a review doubts, and what it does not: on made-up numbers, tables and documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.bench.cells import Pass
from warmup.core.errors import SettingsError
from warmup.core.roofline import Peaks, Work
from warmup.core.rows import Evidence, Family, Flag, Row, Scope, Winner
from warmup.diagnostics.review.documents import review_file
from warmup.diagnostics.review.measurement import Level, Measurement, Reviewed
from warmup.diagnostics.review.rules import RULES, review, share_at_least
from warmup.diagnostics.review.table_rows import implied_peaks, review_table
from warmup.table import Table
from warmup.table.store import write

ROOT = Path(__file__).resolve().parents[2]
PEAKS = Peaks(
    tflops={"bf16": 800.0},
    gbps=4000.0,
    clock_mhz=1980,
    measured="2026-01-02",
    clocks={"bf16": 1600},
)
PRODUCT = Work("bf16", 80_000_000_000, 40_000_000)  # 100 us at the peak of 800 TFLOP/s
END = "bf16 a=row b=col"
GEMM_KEY = f"mm m=560 n=4096 k=4096 {END} out=bf16 | epilogue=none"


def measured(time_us: float, **changes: Any) -> Measurement:
    return replace(Measurement(subject="it", time_us=time_us, work=PRODUCT), **changes)


def reviewed(*measurements: Measurement, **changes: Any) -> Reviewed:
    made = Reviewed(
        measurements=measurements, peaks=PEAKS, origin="given", is_cold=True, latency_us=5.0
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("one", "levels"),
    [
        (measured(125.0), []),
        (measured(99.0), [Level.WRONG]),
        (measured(99.0, is_repeated=True), [Level.LOOK]),
        (measured(97.0, is_repeated=True), [Level.WRONG]),
        (measured(105.0), [Level.LOOK]),
        (measured(1200.0), [Level.LOOK]),
        (measured(12_000.0), [Level.WRONG]),
        (measured(99.0, work=None), []),
        (measured(9.0, work=Work("bf16", None, 40_000_000)), [Level.WRONG]),
        (measured(20.0, work=Work("bf16", None, 4000)), []),
        (measured(900.0, work=Work("bf16", None, 4000)), [Level.WRONG]),
        (measured(900.0, work=Work("", None, 4000, most_moved=400_000_000)), []),
        (measured(80.0, clock_mhz=1980), [Level.WRONG]),
        (measured(85.0, clock_mhz=1980), [Level.LOOK]),
        (measured(125.0, clock_mhz=1200), [Level.LOOK]),
        (measured(125.0, spread=0.51), [Level.LOOK]),
        (measured(125.0, spread=0.49), []),
        (measured(125.0, total_us=120.0), [Level.WRONG]),
        (measured(125.0, total_us=124.0), []),
        (measured(125.0, total_us=112.0, spread=0.12), []),
        (measured(125.0, total_us=111.0, spread=0.12), [Level.WRONG]),
        (measured(125.0, library_us=120.0, band=0.03), [Level.LOOK]),
        (measured(125.0, library_us=122.0, band=0.03), []),
        (measured(125.0, remarks=("unstable",)), [Level.LOOK]),
        (measured(9.0, work=Work("bf16", None, 40_000_000), is_cold=False), []),
    ],
)
def test_a_number_is_doubted_at_the_stated_bounds(one: Measurement, levels: list[Level]) -> None:
    """Above 100 % and below 1 % of a peak is wrong, above 90 % and below 10 % is to look at."""
    assert [doubt.level for doubt in review(reviewed(one))] == levels


def test_the_compute_peak_is_that_at_the_clock_of_the_row() -> None:
    """A row at three quarters of the clock of the peak has four thirds of the share."""
    slow, fast = measured(150.0, clock_mhz=1200), measured(150.0, clock_mhz=1600)
    both = reviewed(slow, fast)
    shares = [share_at_least(both, one) for one in both.measurements]
    assert shares == [pytest.approx(100 / 150 * 4 / 3), pytest.approx(100 / 150)]


def test_bytes_from_a_cache_are_no_share_of_the_memory_peak() -> None:
    """With a warm L2 a call may move its operands faster than the memory does."""
    one = measured(9.0, work=Work("bf16", None, 40_000_000))
    assert review(reviewed(one, is_cold=False)) == ()


def test_without_peaks_nothing_is_held_against_them() -> None:
    """The other rules still hold."""
    doubts = review(reviewed(measured(1.0), measured(1.0, total_us=0.5), peaks=None))
    assert [doubt.reason for doubt in doubts] == ["1 us on the device, of 0.5 us in total"]


def test_a_time_that_falls_while_the_rows_grow_is_doubted_where_it_was_slow() -> None:
    """48, 65 and 47 us for 560, 1024 and 2048 rows: the time at 1024 is to look at."""
    times = {560: 48.5, 1024: 65.4, 2048: 47.4}
    falling = [
        measured(us, subject=f"m={m}", work=None, series={"mm": m}) for m, us in times.items()
    ]
    (doubt,) = review(reviewed(*falling))
    assert (doubt.subject, doubt.level) == ("m=1024", Level.LOOK)
    assert doubt.reason == "the time falls: 65.4 us at 1024, 47.4 us at 2048"


def test_a_fall_within_the_spreads_is_none() -> None:
    """Times that scatter by 30 % may fall by 12 %."""
    first = measured(100.0, work=None, series={"mm": 1}, spread=0.3)
    second = measured(88.0, work=None, series={"mm": 2}, spread=0.3)
    assert review(reviewed(first, second)) == ()


def test_two_times_of_one_call_that_contradict_each_other_are_doubted() -> None:
    """The slower of two measurements of one kernel and product, with the other named."""
    slow = measured(50.0, subject="pad", work=None, call=("mm by cuBLAS", 50.0))
    fast = measured(30.0, subject="gemm", work=None, call=("mm by cuBLAS", 30.0))
    (doubt,) = review(reviewed(slow, fast))
    assert doubt.subject == "pad"
    assert doubt.reason == "50 us for mm by cuBLAS, which took 30 us for: gemm"


def test_the_worst_doubts_come_first() -> None:
    """Probably wrong numbers before those to look at; among equals the largest doubt."""
    doubts = review(reviewed(measured(105.0), measured(90.0), measured(50.0)))
    assert [doubt.level for doubt in doubts] == [Level.WRONG, Level.WRONG, Level.LOOK]
    assert doubts[0].reason.startswith("200%")


def test_every_rule_doubts_something_here() -> None:
    """No rule stands here without a number that it doubts."""
    numbers = reviewed(
        measured(90.0, spread=0.6, total_us=50.0, library_us=50.0, remarks=("unstable",)),
        measured(200.0, series={"mm": 1}, call=("mm", 200.0)),
        measured(100.0, series={"mm": 2}, call=("mm", 100.0)),
    )
    assert all(list(rule(numbers)) for rule in RULES)


def evidence(**changes: Any) -> Evidence:
    made = Evidence(
        time_us=30.0, library_us=30.0, runner_up=None, runner_up_us=None, tried=3, spread=0.01
    )
    return replace(made, **changes)


def test_rows_of_every_kind_have_a_share(make_table: Callable[..., Table]) -> None:
    """Launch, pad and weight rows too: their bytes follow from their keys."""
    rows = {
        GEMM_KEY: Row(Winner(Family.EXTERN, "aten::mm"), evidence()),
        f"pad mm m=560 n=1280 k=3420 {END}": Row(Winner(Family.PAD, "as_is"), evidence()),
        "weight n m=16 in=768 features=50257 bf16 bias=0": Row(
            Winner(Family.WEIGHT, "padded"), evidence()
        ),
        "launch triton_poi_fused_add x=1048576 args=*bf16,i32 source=3f2a9c0d41b7e865": Row(
            Winner(Family.LAUNCH, "pointwise"), evidence()
        ),
    }
    found = review_table(make_table(rows), PEAKS)
    assert all(share_at_least(found, one) for one in found.measurements)


def test_flags_of_a_row_are_doubts(make_table: Callable[..., Table]) -> None:
    """A row that the build flagged as unstable is to look at."""
    row = Row(Winner(Family.EXTERN, "aten::mm"), evidence(flags=(Flag.UNSTABLE,)))
    reasons = [doubt.reason for doubt in review(review_table(make_table({GEMM_KEY: row}), PEAKS))]
    assert "the times varied too much; the library's kernel was kept" in reasons


def test_a_pad_row_is_held_against_the_product_that_it_pads(
    make_table: Callable[..., Table],
) -> None:
    """The library's kernel for the unpadded product has one time, in both rows."""
    rows = {
        GEMM_KEY: Row(Winner(Family.EXTERN, "aten::mm"), evidence()),
        f"pad mm m=560 n=4096 k=4096 {END}": Row(
            Winner(Family.PAD, "as_is"), evidence(time_us=60.0, library_us=60.0)
        ),
    }
    doubts = review(review_table(make_table(rows), PEAKS))
    assert any("which took 30 us for: mm m=560" in doubt.reason for doubt in doubts)


def test_a_region_is_not_the_product_that_it_pads(make_table: Callable[..., Table]) -> None:
    """A pad row of a region has the time of the product as it is among inductor's own calls."""
    row = Row(
        Winner(Family.PAD, "as_is"),
        evidence(time_us=60.0, library_us=60.0, scope=Scope.FUSED, bare_us=31.0),
    )
    rows = {GEMM_KEY: Row(Winner(Family.EXTERN, "aten::mm"), evidence())}
    for own, doubted in (("31 as_is; 50 padded", False), ("50 padded; 60 as_is", True)):
        with_own = replace(row, evidence=replace(row.evidence, bare_ranking=own))
        table = make_table({**rows, f"pad mm m=560 n=4096 k=4096 {END}": with_own})
        reasons = [doubt.reason for doubt in review(review_table(table, PEAKS))]
        assert any("which took 30 us for: mm m=560" in reason for reason in reasons) is doubted


@pytest.mark.parametrize(
    ("key", "family"),
    [
        ("pad mm m={} n=1280 k=3420 bf16 a=row b=col", Family.PAD),
        ("weight k m={} features=3420 out=1280 bf16 bias=0", Family.WEIGHT),
    ],
)
def test_a_decision_about_padding_whose_time_falls_is_doubted(
    make_table: Callable[..., Table], key: str, family: Family
) -> None:
    """Padded at 2048 rows and not at 1024, where it would have been faster."""
    ways = {560: ("as_is", 48.5), 1024: ("as_is", 65.4), 2048: ("padded", 47.4)}
    rows = {
        key.format(m): Row(
            Winner(family, way),
            evidence(time_us=us, library_us=us if way == "as_is" else 90.0, scope=Scope.FUSED),
        )
        for m, (way, us) in ways.items()
    }
    reasons = [doubt.reason for doubt in review(review_table(make_table(rows), PEAKS))]
    assert "the time falls: 65.4 us at 1024, 47.4 us at 2048" in reasons


def test_a_table_with_peaks_is_held_against_its_own(
    make_table: Callable[..., Table], tmp_path: Path
) -> None:
    """They are stored with the table, and read back as they were."""
    table = make_table({GEMM_KEY: Row(Winner(Family.EXTERN, "aten::mm"), evidence())})
    with_peaks = replace(table, provenance=replace(table.provenance, peaks=PEAKS))
    path = tmp_path / "t.json"
    write(path, with_peaks)
    found = review_file(path)
    assert (found.peaks, found.origin) == (PEAKS, "stored with the table")
    given = replace(PEAKS, gbps=1.0)
    assert review_file(path, given).peaks == given


def test_peaks_of_an_earlier_table_follow_from_its_rows(
    make_table: Callable[..., Table],
) -> None:
    """A rate over its share is the peak for the rows that it bounds."""
    bound = evidence(tflops=600.0, gbps=500.0, peak_share=0.75, clock_mhz=1900)
    memory = evidence(tflops=6.0, gbps=2000.0, peak_share=0.5)
    library = Winner(Family.EXTERN, "aten::mm")
    few = GEMM_KEY.replace("m=560", "m=1")
    found = implied_peaks(make_table({GEMM_KEY: Row(library, bound), few: Row(library, memory)}))
    assert found is not None
    assert (found.tflops, found.gbps, found.clocks) == ({"bf16": 800.0}, 4000.0, {})


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("[]", SettingsError),
        ('{"a": 1}', SettingsError),
        ('{"variants": [], "peaks": null}', SettingsError),
        ('{"benchmark": "mm", "shapes": 3}', SettingsError),
        ('{"benchmark": "layers", "cells": [{}]}', SettingsError),
        ('{"benchmark": ["mm"]}', SettingsError),
        ("{", SettingsError),
    ],
)
def test_another_document_is_refused(damage: str, error: type[Exception], tmp_path: Path) -> None:
    """Whatever is no table, comparison or benchmark is an error that names the file."""
    path = tmp_path / "x.json"
    path.write_text(damage, encoding="utf-8")
    with pytest.raises(error, match=r"x\.json"):
        review_file(path)


def test_the_flops_of_a_layer_count(tmp_path: Path) -> None:
    """A layer that says its FLOPs has a share of the compute peak; an earlier document has none."""
    cell = {"layer": "own", "pass": "forward", "backend": "eager", "rows": 8, "columns": 8}
    cell |= {"time_us": 1000.0, "rounds_us": [1000.0] * 3, "least_bytes": 4000}
    shares = []
    for flops in ({"flops": 400_000_000_000}, {"flops": None}, {}):
        path = tmp_path / "bench-layers.json"
        document = {"benchmark": "layers", "dtype": "bf16", "l2": "cold", "peaks": None}
        document |= {"cells": [{**cell, **flops}], "provenance": {"cuda": "13.0"}}
        path.write_text(json.dumps(document), encoding="utf-8")
        found = review_file(path, PEAKS)
        shares.append(share_at_least(found, found.measurements[0]))
    assert shares == [pytest.approx(0.5, rel=0.01), *[pytest.approx(1e-6)] * 2]


def test_a_backward_pass_may_be_faster_than_the_memory(tmp_path: Path) -> None:
    """It finds in the cache what the forward pass has just written; that one finds nothing."""
    cell = {"layer": "own", "backend": "eager", "rows": 8, "columns": 8, "flops": None}
    cell |= {"time_us": 10.0, "rounds_us": [10.0] * 3, "least_bytes": 80_000_000}
    path = tmp_path / "bench-layers.json"
    document = {"benchmark": "layers", "dtype": "bf16", "l2": "cold", "peaks": None}
    document |= {"cells": [{**cell, "pass": each.value} for each in Pass]}
    document |= {"provenance": {"cuda": "13.0"}}
    path.write_text(json.dumps(document), encoding="utf-8")
    wrong = [one for one in review(review_file(path, PEAKS)) if one.level is Level.WRONG]
    assert [one.subject for one in wrong] == ["own forward eager, rows=8 columns=8"]


def test_a_column_of_tf32_is_held_against_its_own_peak() -> None:
    """TF32 is faster than f32 can be, and slower than its own peak."""
    path = ROOT / "docs" / "benchmarks" / "results" / "bench-mm-f32-h100.json"
    found = review_file(path)
    shares = {
        share_at_least(found, one) for one in found.measurements if one.subject.startswith("torch-")
    }
    assert len(shares) == 4
    assert all(0.2 < share < 0.8 for share in shares if share is not None)


def test_a_document_that_misses_a_number_is_refused(tmp_path: Path) -> None:
    """A damaged comparison is an error, not a review of what is left."""
    source = ROOT / "docs" / "benchmarks" / "results" / "compare-swiglu-h200.json"
    document = json.loads(source.read_text(encoding="utf-8"))
    del document["buckets"][0]["variants"][0]["median_us"]
    path = tmp_path / "compare.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SettingsError, match="damaged"):
        review_file(path)
