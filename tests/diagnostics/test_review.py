"""What a review doubts, and what it does not: on made-up numbers and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sample_tables import make_table

from warmup.core.roofline import Peaks, Work
from warmup.core.rows import Evidence, Family, Flag, Row, Scope, Winner
from warmup.keys.registry import product_of
from warmup.table.review import Level, Reviewed, TimedRow, review, review_table

PEAKS = Peaks(
    tflops={"bf16": 800.0},
    gbps=4000.0,
    clock_mhz=1980,
    measured="2026-01-02",
    clocks={"bf16": 1600},
)
PRODUCT = Work("bf16", 80_000_000_000, 40_000_000)  # 100 us at the peak of 800 TFLOP/s
BYTES, FEW = Work("bf16", None, 40_000_000), Work("bf16", None, 4000)
END = "bf16 a=row b=col"
# No other row has its call or other sizes of it.
LAUNCH_KEY = "launch triton_poi_fused_add x=1048576 args=*bf16,i32 source=3f2a9c0d41b7e865"
GEMM_KEY = f"mm m=560 n=4096 k=4096 {END} out=bf16 | epilogue=none"
PAD_KEY = f"pad mm m=560 n=4096 k=4096 {END}"


def row(family: Family = Family.EXTERN, name: str = "aten::mm", **changes: Any) -> Row:
    made = Evidence(
        time_us=30.0, library_us=30.0, runner_up=None, runner_up_us=None, tried=3, spread=0.01
    )
    return Row(Winner(family, name), replace(made, **changes))


def timed(
    time_us: float, *, key: str = LAUNCH_KEY, work: Work | None = PRODUCT, **of: Any
) -> TimedRow:
    """Return a row without a library's time to lose against, unless *of* has one."""
    return TimedRow(key, row(time_us=time_us, **{"library_us": None, **of}), work)


def reviewed(*rows: TimedRow, **changes: Any) -> Reviewed:
    made = Reviewed(rows=rows, peaks=PEAKS, is_cold=True, latency_us=5.0)
    return replace(made, **changes)


def reasons_in(rows: Mapping[str, Row]) -> list[str]:
    return [doubt.reason for doubt in review(review_table(make_table(dict(rows)), PEAKS))]


LOOK, WRONG = Level.LOOK, Level.WRONG
REPEATED = (Flag.OVER_PEAK,)
BOUNDS: list[tuple[TimedRow, list[Level]]] = [
    (timed(125.0), []),
    (timed(99.0), [WRONG]),
    (timed(99.0, flags=REPEATED), [LOOK, LOOK]),  # for its share, and for the flag
    (timed(97.0, flags=REPEATED), [WRONG, LOOK]),
    (timed(105.0), [LOOK]),
    (timed(1200.0), [LOOK]),
    (timed(12_000.0), [WRONG]),
    (timed(99.0, work=None), []),
    (timed(9.0, work=BYTES), [WRONG]),
    (timed(20.0, work=FEW), []),
    (timed(900.0, work=FEW), [WRONG]),
    (timed(900.0, work=Work("", None, 4000, most_moved=400_000_000)), []),
    (timed(80.0, clock_mhz=1980), [WRONG]),
    (timed(85.0, clock_mhz=1980), [LOOK]),
    (timed(125.0, clock_mhz=1200), [LOOK]),
    (timed(125.0, spread=0.51), [LOOK]),
    (timed(125.0, spread=0.49), []),
    (timed(125.0, library_us=120.0, band=0.03), [LOOK]),
    (timed(125.0, library_us=122.0, band=0.03), []),
    (timed(125.0, flags=(Flag.UNSTABLE,)), [LOOK]),
    (timed(250.0, scope=Scope.FUSED, bare_us=99.0), [WRONG]),
]


def test_a_number_is_doubted_at_the_stated_bounds() -> None:
    """Above 100 % and below 1 % of a peak is wrong, above 90 % and below 10 % is to look at."""
    for one, levels in BOUNDS:
        assert [doubt.level for doubt in review(reviewed(one))] == levels, one
    said = "the times varied too much; the library's kernel was kept"
    assert said in reasons_in({GEMM_KEY: row(flags=(Flag.UNSTABLE,))})
    # Probably wrong numbers before those to look at; among equals the largest doubt.
    doubts = review(reviewed(timed(105.0), timed(90.0), timed(50.0)))
    assert [doubt.level for doubt in doubts] == [WRONG, WRONG, LOOK]
    assert doubts[0].reason.startswith("200%")


def test_a_time_that_falls_while_the_rows_grow_is_doubted() -> None:
    """48, 65 and 47 us for 560, 1024 and 2048 rows: the time at 1024 is to look at."""
    times = {"560": 48.5, "561..1024": 65.4, "2048": 47.4, "2049..": 1.0}
    falling = [
        timed(us, key=GEMM_KEY.replace("560", m), work=None, spread=None) for m, us in times.items()
    ]
    (doubt,) = review(reviewed(*falling))
    said = "the time falls: 65.4 us at 1024, 47.4 us at 2048"
    assert (doubt.subject, doubt.level, doubt.reason) == (falling[1].key, LOOK, said)
    # Times that scatter by 30 % may fall by 12 %.
    first = timed(100.0, key=GEMM_KEY, work=None, spread=0.3)
    second = timed(88.0, key=GEMM_KEY.replace("560", "1024"), work=None, spread=0.3)
    assert review(reviewed(first, second)) == ()
    # Padded at 2048 rows and not at 1024, where it would have been faster.
    ways = {560: ("as_is", 48.5), 1024: ("as_is", 65.4), 2048: ("padded", 47.4)}
    for key, family in (
        ("pad mm m={} n=1280 k=3420 bf16 a=row b=col", Family.PAD),
        ("weight k m={} features=3420 out=1280 bf16 bias=0", Family.WEIGHT),
    ):
        rows = {
            key.format(m): row(
                *(family, way),
                time_us=us,
                library_us=us if way == "as_is" else 90.0,
                scope=Scope.FUSED,
            )
            for m, (way, us) in ways.items()
        }
        assert said in reasons_in(rows), key


def test_two_times_of_one_call_that_contradict_each_other_are_doubted() -> None:
    """The slower of two measurements of one kernel and product, with the other named.

    The library's kernel for an unpadded product has one time, in its GEMM row and its pad row;
    a pad row of a region has it among inductor's own calls.
    """
    fused = GEMM_KEY.replace("epilogue=none", "epilogue=relu")
    slow = timed(70.0, key=fused, work=None, scope=Scope.FUSED, bare_us=50.0)
    (doubt,) = review(reviewed(slow, timed(30.0, key=GEMM_KEY, work=None)))
    said = f"50 us for {product_of(GEMM_KEY)} by the library's kernel, which took 30 us for: "
    assert (doubt.subject, doubt.reason) == (fused, said + GEMM_KEY)
    region = {"scope": Scope.FUSED, "bare_us": 31.0}
    for own, is_doubted in (
        ({}, True),
        ({**region, "bare_ranking": "31 as_is; 50 padded"}, False),
        ({**region, "bare_ranking": "50 padded; 60 as_is"}, True),
    ):
        pad = row(Family.PAD, "as_is", time_us=60.0, library_us=60.0, **own)
        reasons = reasons_in({GEMM_KEY: row(), PAD_KEY: pad})
        found = any("which took 30 us for: mm m=560" in reason for reason in reasons)
        assert found is is_doubted, own
