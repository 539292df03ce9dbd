"""Whether padding pays: what follows from times, and a build that measures it on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Flag, Row, Timing, Tuned, Winner
from warmup.keys.weight import Structure, winner_of
from warmup.tuning.weights.measure import _decided, _pays, _reversed

Weighed = tuple[Path, dict[str, Any]]
MakeRow = Callable[..., Row]
PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "weigh_ranges.py"
STRUCTURE = Structure(inputs=(64,), features=99, outputs=(), dtype="bf16", biases=(True,))
AS_IS, PADDED = winner_of(STRUCTURE, 99), winner_of(STRUCTURE, 104)


@pytest.fixture
def tuned(make_row: MakeRow) -> Callable[..., Tuned]:
    """``tuned(10.0, 8.0)``: 10 us as it is, 8 us padded, whoever is nearer to winning."""

    def make(as_is_us: float, padded_us: float, *flags: Flag) -> Tuned:
        winner: Winner = AS_IS if as_is_us <= padded_us else PADDED
        evidence = replace(make_row().evidence, library_us=as_is_us, flags=flags)
        timings = (Timing(AS_IS, as_is_us), Timing(PADDED, padded_us))
        return Tuned("k", Row(winner, evidence), timings)

    return make


@pytest.mark.parametrize(
    ("times", "pays"),
    [
        ([(10.0, 8.0)], True),
        ([(10.0, 8.0), (10.0, 10.2)], True),
        ([(10.0, 8.0), (10.0, 10.4)], False),
        ([(10.0, 9.8)], False),
        ([(10.0, 12.0)], False),
    ],
)
def test_padding_pays_when_it_is_faster_somewhere_and_slower_nowhere(
    tuned: Callable[..., Tuned], times: list[tuple[float, float]], pays: bool
) -> None:
    """By more than the near-tie band, whatever the number of rows."""
    assert _pays([tuned(*pair) for pair in times], PADDED, AS_IS, 0.03) is pays


def test_times_that_shook_say_nothing(tuned: Callable[..., Tuned]) -> None:
    """A row that is unstable keeps the library default, here the weights as they are."""
    assert not _pays([tuned(10.0, 5.0, Flag.UNSTABLE)], PADDED, AS_IS, 0.03)


def test_a_row_tells_both_times_whoever_is_chosen(tuned: Callable[..., Tuned]) -> None:
    """Chosen for the sake of other numbers of rows, it is a near tie, with its own time."""
    found = _decided(tuned(10.0, 10.2), PADDED, AS_IS).row
    assert (found.winner, found.evidence.time_us, found.evidence.library_us) == (PADDED, 10.2, 10.0)
    assert (found.evidence.runner_up, found.evidence.runner_up_us) == (str(AS_IS), 10.0)
    assert Flag.NEAR_TIE in found.evidence.flags


def test_a_row_is_reversed_by_what_came_later(tuned: Callable[..., Tuned]) -> None:
    """Slower for another number of rows, the weights stay, and the row says what it costs here."""
    before = _decided(tuned(10.0, 8.0), PADDED, AS_IS).row
    after = _reversed(before, AS_IS, PADDED)
    assert (after.winner, after.evidence.time_us) == (AS_IS, 10.0)
    assert (after.evidence.runner_up, after.evidence.runner_up_us) == (str(PADDED), 8.0)


def test_a_build_writes_a_row_for_each_number_of_rows(weighed: Weighed) -> None:
    """Its key is about sizes, and its winner names the padded one."""
    rows = weighed[1]["rows"]
    assert {key: kwargs for key, kwargs in rows.items() if key.startswith("weight ")} == {
        "weight n m=8 in=64 features=99 f32 bias=1 fp32=ieee": {"features": 100}
    }


def test_a_build_tells_what_it_padded(weighed: Weighed) -> None:
    """By name in the report, and with both sizes and the memory in the closing lines."""
    assert weighed[1]["built"] == ["head"]
    assert weighed[1]["text"][3:5] == [
        "groups of weights padded: 1, 0.0 MiB more (1.01%)",
        "head: 99 features padded to 100",
    ]


def test_where_a_range_is_served_padding_is_weighed_for_the_range(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str], head: str
) -> None:
    """No row is tuned for its end alone, and the padded runs find theirs tuned already."""
    _, said = run_once("weighed-ranges", str(PROGRAM), head, "table.json", **variables)
    found = json.loads(said)
    sizes = {word for key in found["keys"] for word in key.split() if word.startswith("m=")}
    assert sizes == {"m=1", "m=2..8"}
    assert [found["tuned"][f"seqlen={size}, weights padded"] for size in ("1", "2..8")] == [0, 0]
