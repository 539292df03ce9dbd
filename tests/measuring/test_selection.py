"""`select_winner` and `make_row`: which candidate wins, which cannot, and the row's evidence."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_trials import LIBRARY, template, timed

from warmup.core.roofline import Peaks, Work
from warmup.core.rows import Family, Flag, Method, Rejection, Row, Winner
from warmup.core.trial import Outcome, RegionKernels, Samples
from warmup.measuring.selection import (
    Selected,
    doubtful_us,
    make_fused_row,
    make_row,
    select_winner,
)

KEY = "mm m=560 n=1280 k=3420 bf16 a=row b=col out=bf16 | epilogue=none"
WORK = Work("bf16", 10**9, 10**6)
METHOD = Method()
PEAKS = Peaks(tflops={"bf16": 1000.0}, gbps=1000.0, clock_mhz=1980, measured="2026-01-02")


def rejected(winner: Winner, reason: Rejection, said: str = "") -> Outcome:
    return Outcome(winner=winner, samples=Samples((0.1,)), rejection=reason, said=said)


def winner_of(*outcomes: Outcome) -> Winner | None:
    verdict = select_winner(outcomes, LIBRARY, METHOD)
    return None if verdict is None else verdict.outcome.winner


def flags_of(*outcomes: Outcome) -> tuple[Flag, ...]:
    verdict = select_winner(outcomes, LIBRARY, METHOD)
    assert verdict is not None
    return verdict.flags


def row_of(*outcomes: Outcome, peaks: Peaks | None = PEAKS, work: Work | None = WORK) -> Row:
    tuned = make_row(KEY, outcomes, LIBRARY, METHOD, work=work, peaks=peaks)
    assert tuned is not None
    return tuned.row


def test_in_a_near_tie_the_library_wins() -> None:
    """Outside the band the time decides, and no flag is set."""
    outcomes = timed(LIBRARY, 10.0), timed(template(64), 8.0), timed(template(32), 9.0)
    assert winner_of(*outcomes) == template(64)
    assert flags_of(*outcomes) == ()
    # The library default, 2 % slower than the fastest, is served; the row says near tie.
    outcomes = timed(template(64), 10.0), timed(LIBRARY, 10.2)
    assert winner_of(*outcomes) == LIBRARY
    assert flags_of(*outcomes) == (Flag.NEAR_TIE,)
    # At 3 % the library ties, above it does not.
    fastest = timed(template(64), 100.0)
    assert winner_of(fastest, timed(LIBRARY, 103.0)) == LIBRARY
    assert winner_of(fastest, timed(LIBRARY, 103.1)) == template(64)


def test_an_algorithm_beside_the_library_needs_a_gain_of_a_percent() -> None:
    """Both run without a compile. Templates have to gain 3 % over the library all the same."""
    algorithms = [Winner(Family.BLAS, "blas::mm", (("workspace", size),)) for size in (0, 1)]
    for library_us, second_us, expected in (
        (102.0, 101.5, algorithms[1]),
        (102.0, 100.5, algorithms[0]),
        (100.9, 101.5, LIBRARY),
    ):
        outcomes = timed(algorithms[1], 100.0), timed(algorithms[0], second_us)
        found = winner_of(*outcomes, timed(LIBRARY, library_us), timed(template(64), 100.2))
        assert found == expected, (library_us, second_us)
    outcomes = timed(algorithms[0], 50.0), timed(LIBRARY, 100.0)
    limited = select_winner(outcomes, LIBRARY, METHOD, prefers_fewer=True)
    assert limited is not None
    assert limited.outcome.winner == LIBRARY, "its call takes longer on the host, which limits here"


def test_the_order_of_equals_is_fixed() -> None:
    """The order is family, tile, uid, text, whatever the order and the times of the outcomes."""
    for case, (first, second) in {
        "tile": (template(32), template(64)),
        "extern": (Winner(Family.EXTERN, "aten::other"), template(16)),
        "pad": (Winner(Family.PAD, "pad"), template(16)),
        "cpp": (Winner(Family.CPP, "cpp_gemm"), Winner(Family.LAUNCH, "kernel")),
        "subgraph last": (template(32), Winner(Family.SUBGRAPH, "decompose_k")),
        "uid": (template(32, "triton_bmm"), template(32, "triton_mm")),
        "kwargs": (template(32, num_warps=4), template(32, num_warps=8)),
    }.items():
        faster, slower = (10.0, 10.2), (10.2, 10.0)
        for times in (faster, slower):
            one, other = timed(first, times[0]), timed(second, times[1])
            assert winner_of(one, other) == first, case
            assert winner_of(other, one) == first, case


def test_only_the_uncertainty_of_the_fastest_widens_the_band() -> None:
    """With the fastest known to 5 % only, a library default that is 4.5 % slower ties with it."""
    unsure = timed(template(64), 95.0, 100.0, 100.0, 100.0, 105.0)
    verdict = select_winner([unsure, timed(LIBRARY, 104.5)], LIBRARY, METHOD)
    assert verdict is not None
    assert verdict.band == pytest.approx(0.05)
    assert (verdict.outcome.winner, verdict.flags) == (LIBRARY, (Flag.NEAR_TIE,))
    assert winner_of(timed(template(64), 100.0), timed(LIBRARY, 104.5)) == template(64)
    # The uncertainty of a slow candidate changes nothing.
    slow = timed(template(32), 90.0, 104.5, 120.0)
    verdict = select_winner([timed(template(64), 100.0), slow], LIBRARY, METHOD)
    assert verdict is not None
    assert verdict.band == METHOD.near_tie


def test_a_gain_within_the_spread_is_none() -> None:
    """A template that leads by less than the times of either vary does not replace the library."""
    for case, (winning, control) in {
        "winner": ((97.0,) * 6 + (103.0,) * 6, (102.0, 104.5, 107.0)),
        "library": ((100.0,), (99.0, 103.0, 106.0, 109.0)),
    }.items():
        outcomes = timed(template(64), *winning), timed(LIBRARY, *control)
        row = row_of(*outcomes, peaks=None)
        assert row.winner == LIBRARY, case
        assert row.evidence.flags == (Flag.NEAR_TIE,), case
        assert row.evidence.band is not None, case
        assert row.evidence.time_us <= 100.0 * (1 + row.evidence.band), case


def test_a_gain_is_beyond_the_spread_and_over_the_library() -> None:
    """A lead of 3.5 % with spreads of 1 % is a decision."""
    faster = timed(template(64), 99.0, 99.5, 100.0, 100.5, 101.0)
    slower = timed(LIBRARY, 102.5, 103.0, 103.5, 104.0, 104.5)
    assert row_of(faster, slower).winner == template(64)
    # The small tile ties with the fastest template, but leads the library by 1 % only.
    outcomes = timed(template(64), 100.0), timed(template(32), 102.9), timed(LIBRARY, 104.0)
    assert winner_of(*outcomes) == template(64)


def test_nothing_wins_because_noise_refused_the_library() -> None:
    """With a refused time the library keeps its row, which is unstable and counts the refusal."""
    for reason in (Rejection.IMPLAUSIBLE, Rejection.TIMED_OUT):
        row = row_of(timed(template(64), 1.0), rejected(LIBRARY, reason), peaks=None)
        evidence = row.evidence
        assert (row.winner, evidence.flags) == (LIBRARY, (Flag.UNSTABLE,)), reason
        assert (evidence.library_us, evidence.is_unstable) == (evidence.time_us, True), reason
        assert evidence.rejected == ((reason, 1),)
    # A candidate does not win because the library ran out of time or of memory.
    for reason in [each for each in Rejection if each.may_be_noise]:
        outcomes = [timed(template(64), 1.0), Outcome(winner=LIBRARY, rejection=reason)]
        assert select_winner(outcomes, LIBRARY, METHOD) is None, reason
    # Where other work disturbed the trial, even a candidate that always led does not win.
    outcomes = [timed(template(64), 50.0), timed(LIBRARY, 100.0)]
    verdict = select_winner(outcomes, LIBRARY, METHOD, is_disturbed=True)
    assert verdict is not None
    assert (verdict.outcome.winner, verdict.flags) == (LIBRARY, (Flag.UNSTABLE,))


WIDE = (80.0, 90.0, 100.0, 110.0, 120.0)


def test_an_unstable_time_keeps_the_library() -> None:
    """When the spread of the winner or of the library is above the limit, the library wins."""
    for winning, control in (((60.0, 80.0, 200.0), (200.0,)), ((100.0,), (99.0, 150.0, 200.0))):
        outcomes = timed(template(64), *winning), timed(LIBRARY, *control)
        assert winner_of(*outcomes) == LIBRARY, (winning, control)
        assert Flag.UNSTABLE in flags_of(*outcomes), (winning, control)
    # Its slowest round beats the library's fastest, however unstable the times are.
    for winning, control in (((60.0, 80.0, 100.0), (200.0,)), ((100.0,), (101.0, 150.0, 200.0))):
        outcomes = timed(template(64), *winning), timed(LIBRARY, *control)
        assert winner_of(*outcomes) == template(64), (winning, control)
        assert flags_of(*outcomes) == (), (winning, control)
    # The spread of a candidate that is neither the winner nor the library does not matter.
    outcomes = timed(template(64), 50.0), timed(LIBRARY, 100.0), timed(template(32), *WIDE)
    assert winner_of(*outcomes) == template(64)
    assert flags_of(*outcomes) == ()
    # Without a timed library default the winner stays, and the flag is set.
    outcomes = timed(template(64), 60.0, 80.0, 100.0), rejected(LIBRARY, Rejection.WRONG)
    assert winner_of(*outcomes) == template(64)
    assert flags_of(*outcomes) == (Flag.UNSTABLE,)


def test_nothing_timed_is_no_row() -> None:
    for case, outcomes in {
        "nothing": (),
        "not timed": (Outcome(winner=LIBRARY),),
        "rejected": (rejected(LIBRARY, Rejection.WRONG),),
        "screened": (timed(LIBRARY, 1.0, is_final=False),),
        "took no time": (timed(LIBRARY, 0.0),),
    }.items():
        assert select_winner(outcomes, LIBRARY, METHOD) is None, case
        assert make_row(KEY, outcomes, LIBRARY, METHOD, work=WORK, peaks=PEAKS) is None, case


def test_evidence_says_what_was_measured() -> None:
    """The times of winner, library and runner-up and the rates equal those computed by hand."""
    row = row_of(timed(LIBRARY, 20.0), timed(template(64), 10.0), timed(template(32), 15.0))
    evidence = row.evidence
    assert (evidence.time_us, evidence.library_us, evidence.tried) == (10.0, 20.0, 3)
    assert (evidence.runner_up, evidence.runner_up_us) == (str(template(32)), 15.0)
    assert (evidence.tflops, evidence.gbps, evidence.peak_share) == (100.0, 100.0, 0.1)
    assert (evidence.spread, evidence.band, evidence.error) == (0.0, 0.03, 0.01)
    assert (evidence.clock_mhz, evidence.flags) == (1500, ())


def test_a_share_that_is_hard_to_believe_is_flagged() -> None:
    """For work of 1 us at the peaks: over them, or 100 times below; short times never are.

    Without work or peaks the share is unknown; without known operations there is no TFLOP/s.
    """
    small = Work("bf16", 10**7, 10**3)
    for time_us, work, peaks, share, flags in (
        (0.9, WORK, PEAKS, 1.111, (Flag.OVER_PEAK,)),
        (1.0, WORK, PEAKS, 1.0, ()),
        (90.0, WORK, PEAKS, 0.011, ()),
        (110.0, WORK, PEAKS, 0.009, (Flag.FAR_BELOW_PEAK,)),
        (90.0, small, PEAKS, 0.0, ()),
        (1e6, None, PEAKS, None, ()),
        (1e6, WORK, None, None, ()),
        (10.0, replace(WORK, flops=None), PEAKS, 0.1, ()),
    ):
        evidence = row_of(timed(LIBRARY, time_us), work=work, peaks=peaks).evidence
        assert (evidence.peak_share, evidence.flags) == (share, flags), (time_us, work, peaks)
        assert (evidence.gbps is None) == (work is None), time_us
        assert (evidence.tflops is None) == (work is None or work.flops is None), time_us
    for floor_us, doubtful in ((0.1, 100.0), (1.0, 100.0), (20.0, 2000.0)):
        assert doubtful_us(floor_us) == pytest.approx(doubtful)


WINNERS = (
    LIBRARY,
    Winner(Family.EXTERN, "aten::other"),
    Winner(Family.SUBGRAPH, "decompose_k", (("k_split", 4),)),
    *(template(block, num_warps=warps) for block in (16, 32, 64) for warps in (2, 4, 8)),
)


@st.composite
def outcome_lists(draw: st.DrawFn) -> list[Outcome]:
    """Draw outcomes with close times, some only screened, some rejected."""
    times = st.lists(st.floats(9.5, 10.5), min_size=1, max_size=8).map(tuple)
    return [
        Outcome(
            winner=winner,
            samples=Samples(draw(times)),
            rejection=draw(st.none() | st.sampled_from(Rejection)),
            is_final=draw(st.booleans()),
        )
        for winner in draw(st.lists(st.sampled_from(WINNERS), unique=True, max_size=8))
    ]


@given(outcome_lists(), st.randoms())
def test_the_order_of_candidates_never_changes_the_row(
    outcomes: list[Outcome], random: Random
) -> None:
    """The same outcomes in any order give the same row with the same evidence, or no row."""
    first = make_row(KEY, outcomes, LIBRARY, METHOD, work=WORK, peaks=PEAKS)
    random.shuffle(outcomes)
    second = make_row(KEY, outcomes, LIBRARY, METHOD, work=WORK, peaks=PEAKS)
    assert (first and first.row) == (second and second.row)


@given(outcome_lists())
def test_a_winner_was_measured_and_is_near_the_fastest(outcomes: list[Outcome]) -> None:
    """The winner is final, not rejected and, unless flagged unstable, within the band."""
    verdict = select_winner(outcomes, LIBRARY, METHOD)
    able = [one for one in outcomes if one.rejection is None and one.is_final]
    refused = [one for one in outcomes if one.winner == LIBRARY and one.rejection]
    if refused and refused[0].rejection and refused[0].rejection.may_be_noise:
        assert verdict is None or verdict == Selected(refused[0], 0.03, (Flag.UNSTABLE,))
        return
    if verdict is None:
        assert able == []
        return
    assert verdict.outcome in able
    if Flag.UNSTABLE not in verdict.flags:
        fastest = min(one.samples.median for one in able if one.samples)
        assert verdict.outcome.time_us is not None
        assert verdict.outcome.time_us <= fastest * (1 + verdict.band)


def in_region(winner: Winner, time_us: float, kernels: int, spills: int | None = None) -> Outcome:
    """Return the outcome of *winner* in its region, with what was compiled for it."""
    compiled = RegionKernels(kernels, spills, None if spills is None else 255, is_as_decided=True)
    return replace(timed(winner, time_us), kernels=compiled)


def test_of_equals_a_kernel_that_compiles_slowly_goes_last() -> None:
    """The library is before all; what compiles in up to twice the time is no slower to start."""
    small, large = replace(template(16), fused=True), replace(template(64), fused=True)
    for library_us, seconds, expected in (
        (13.0, (9.0, 4.0), large),
        (13.0, (7.0, 4.0), small),
        (13.0, (None, 4.0), large),
        (13.0, (None, None), small),
        (10.0, (9.0, 4.0), LIBRARY),
    ):
        tried = [
            replace(timed(winner, 10.0), kernels=RegionKernels(1, 0, 255, compile_s=each))
            for winner, each in zip((small, large), seconds, strict=True)
        ]
        bare = make_row(KEY, [timed(LIBRARY, 11.0), timed(small.choice, 10.0)], LIBRARY, METHOD)
        assert bare is not None
        tuned = make_fused_row(bare, [timed(LIBRARY, library_us), *tried], LIBRARY, METHOD)
        assert tuned is not None
        kept = dict(zip((small, large), seconds, strict=True)).get(expected)
        found = tuned.row.winner, tuned.row.evidence.compile_s
        assert found == (expected, kept), (library_us, seconds)


def test_the_row_says_whether_the_winner_is_fused() -> None:
    tile = template(64)
    fused, apart = replace(tile, fused=True), replace(tile, fused=False)
    bare = make_row(KEY, [timed(LIBRARY, 11.0), timed(tile, 10.0)], LIBRARY, METHOD)
    region = [in_region(LIBRARY, 20.0, 2), in_region(fused, 12.0, 1, 22), in_region(apart, 19.0, 2)]
    # Of two tiles that fail, one fails fused and not: that is a rejection.
    ways = (template(16), True), (template(32), True), (template(32), False)
    region += [rejected(replace(one, fused=way), Rejection.LAUNCH) for one, way in ways]
    region.append(timed(replace(template(16), fused=False), 30.0))
    assert bare is not None
    tuned = make_fused_row(bare, region, LIBRARY, METHOD)
    assert tuned is not None
    evidence = tuned.row.evidence
    assert tuned.row.winner == fused
    assert (evidence.kernels, evidence.library_kernels) == (1, 2)
    assert evidence.rejected == ((Rejection.LAUNCH, 1),)
    assert (evidence.spills, evidence.registers) == (22, 255)
    assert (evidence.time_us, evidence.bare_us, evidence.tried) == (12.0, 10.0, 2)
    assert [(one.winner, one.time_us, one.fused_us) for one in tuned.timings] == [
        (LIBRARY, 11.0, 20.0),
        (fused, 10.0, 12.0),
        (apart, 10.0, 19.0),
    ]


def test_among_near_ties_fewer_kernels_win() -> None:
    """A fused tile does over one that is not; in a bucket that the host limits, also the library's.

    No candidate out of the band does, nor one that ties with the library only since times vary.
    """
    small, large = replace(template(32), fused=False), replace(template(64), fused=True)
    noise = (8.0, 10.0, 12.0)
    for case, outcomes, winner, fewest in (
        ("fused", [timed(LIBRARY, 20.0), timed(small, 10.0), timed(large, 10.1)], large, large),
        ("library", [in_region(LIBRARY, 10.0, 2), in_region(large, 10.2, 1)], LIBRARY, large),
        ("beyond", [in_region(LIBRARY, 10.0, 2), in_region(large, 10.4, 1)], LIBRARY, LIBRARY),
        ("as many", [in_region(LIBRARY, 10.0, 1), in_region(large, 10.0, 1)], LIBRARY, LIBRARY),
        ("unknown", [in_region(LIBRARY, 10.0, 2), timed(large, 10.0)], LIBRARY, LIBRARY),
        ("slower library", [in_region(LIBRARY, 20.0, 1), in_region(small, 10.0, 3)], small, small),
        (
            "fewest",
            [in_region(large, 10.2, 1), in_region(small, 10.0, 2), in_region(template(8), 10.0, 3)],
            template(8),
            large,
        ),
        (
            "noise",
            [
                replace(timed(LIBRARY, *noise), kernels=RegionKernels(2, 0, 0, is_as_decided=True)),
                in_region(large, 10.0, 1),
            ],
            LIBRARY,
            LIBRARY,
        ),
    ):
        for prefers_fewer, expected in ((False, winner), (True, fewest)):
            verdict = select_winner(outcomes, LIBRARY, METHOD, prefers_fewer=prefers_fewer)
            assert verdict is not None
            assert verdict.outcome.winner == expected, (case, prefers_fewer)
