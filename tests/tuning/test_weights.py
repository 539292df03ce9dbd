"""Whether padding pays: decided from times, and measured by a build on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_row

from warmup.core.rows import Evidence, Flag, Row, Timing, Tuned, Winner
from warmup.keys.gemm import Dim
from warmup.keys.weight import Structure, winner_of
from warmup.tuning.weights import _decided_size, _pays, _with_winner, unpadded_row

pytestmark = pytest.mark.long

Weighed = tuple[Path, dict[str, Any]]
PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "weigh_ranges.py"
STRUCTURE = Structure(inputs=(64,), features=99, outputs=(), dtype="bf16", biases=(True,))
AS_IS, PADDED = winner_of(STRUCTURE, 99), winner_of(STRUCTURE, 104)


def tuned(as_is_us: float, padded_us: float, *flags: Flag) -> Tuned:
    """``tuned(10.0, 8.0)``: 10 us unpadded, 8 us padded; the faster one is the winner."""
    winner: Winner = AS_IS if as_is_us <= padded_us else PADDED
    evidence = replace(make_row().evidence, library_us=as_is_us, flags=flags)
    timings = (Timing(AS_IS, as_is_us), Timing(PADDED, padded_us))
    return Tuned("k", Row(winner, evidence), timings)


def test_padding_pays_beyond_the_spread_of_the_times() -> None:
    """By more than the near-tie band, whatever the number of rows."""
    for times, pays in (
        ([(10.0, 8.0)], True),
        ([(10.0, 8.0), (10.0, 10.2)], True),
        ([(10.0, 8.0), (10.0, 10.4)], False),
        ([(10.0, 9.8)], False),
        ([(10.0, 12.0)], False),
    ):
        assert _pays([tuned(*pair) for pair in times], PADDED, AS_IS, 0.03) is pays, times
    # The row kept the weights as they are, although the other median is lower by 5 %.
    noisy = tuned(10.0, 9.5)
    kept = replace(noisy, row=replace(noisy.row, winner=AS_IS))
    assert _pays([noisy], PADDED, AS_IS, 0.03)
    assert not _pays([kept], PADDED, AS_IS, 0.03)


def test_a_row_has_the_spread_of_its_winner() -> None:
    """Also where the winner was chosen for the sake of other numbers of rows."""
    before = tuned(10.0, 10.2)
    timings = tuple(
        replace(each, spread=spread)
        for each, spread in zip(before.timings, (0.01, 0.04), strict=True)
    )
    assert _with_winner(replace(before, timings=timings), PADDED, AS_IS).row.evidence.spread == 0.04


def test_unstable_times_are_a_tie_and_both_are_kept() -> None:
    """A row that is unstable keeps the library default, here the weights as they are."""
    assert not _pays([tuned(10.0, 5.0, Flag.UNSTABLE)], PADDED, AS_IS, 0.03)
    # A winner chosen for the sake of other numbers of rows is a near tie, with its own time.
    row = _with_winner(tuned(10.0, 10.2), PADDED, AS_IS).row
    assert (row.winner, row.evidence.time_us, row.evidence.library_us) == (PADDED, 10.2, 10.0)
    assert (row.evidence.runner_up, row.evidence.runner_up_us) == (str(AS_IS), 10.0)
    assert Flag.NEAR_TIE in row.evidence.flags


def test_a_padded_row_is_unpadded_by_a_later_measurement() -> None:
    """Padding is slower for another number of rows: the row keeps both of its times."""
    before = _with_winner(tuned(10.0, 8.0), PADDED, AS_IS).row
    after = unpadded_row(before, AS_IS, Flag.NEAR_TIE)
    assert (after.winner, after.evidence.time_us) == (AS_IS, 10.0)
    assert (after.evidence.runner_up, after.evidence.runner_up_us) == (str(PADDED), 8.0)


def test_padding_that_was_wrong_is_not_taken_again() -> None:
    """One row that is not trusted decides for all rows of the structure, measured now or before."""
    for measured in (7, 9):
        evidence = Evidence(time_us=1, library_us=2, runner_up=None, runner_up_us=None, tried=2)
        row = Row(winner_of(STRUCTURE, 104), evidence)
        rows = {STRUCTURE.key(Dim.of(m)): row for m in (7, 9)}
        assert _decided_size(STRUCTURE, rows, [Dim.of(measured)]) == 104
        rows[STRUCTURE.key(Dim.of(7))] = replace(row, untrusted="the output was wrong")
        assert _decided_size(STRUCTURE, rows, [Dim.of(measured)]) == STRUCTURE.features


def test_a_build_writes_a_row_for_each_number_of_rows(weighed: Weighed) -> None:
    """Its key has the sizes, and its winner names the padded size."""
    rows = weighed[1]["rows"]
    assert {key: kwargs for key, kwargs in rows.items() if key.startswith("weight ")} == {
        "weight n m=8 in=64 features=99 f32 bias=1 fp32=ieee": {"features": 100}
    }


def test_a_build_reports_the_padded_groups(weighed: Weighed) -> None:
    """By name in the report, and with both sizes and the memory in the closing lines."""
    assert weighed[1]["built"] == ["head"]
    text = weighed[1]["text"]
    begin = next(i for i, line in enumerate(text) if line.startswith("groups of weights"))
    assert text[begin : begin + 2] == [
        "groups of weights padded: 1, 0.0 MiB more (1.01%)",
        "head: 99 features padded to 100",
    ]


def test_padding_is_measured_for_the_range_that_is_served(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str], head: str
) -> None:
    """No row is for the upper end alone, and the padded runs find all their rows."""
    _, output = run_once("weighed-ranges", str(PROGRAM), head, "table.json", **variables)
    found = json.loads(output)
    sizes = {word for key in found["keys"] for word in key.split() if word.startswith("m=")}
    assert sizes == {"m=1", "m=2..8"}
    assert [found["tuned"][f"seqlen={size}, weights padded"] for size in ("1", "2..8")] == [0, 0]
