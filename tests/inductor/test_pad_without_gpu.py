"""Rows of kind ``pad``: inductor's pad_mm pass on a stated H100, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from warmup.keys.registry import kind_of

PROGRAM = "cuda_padding.py"

RANGE = [2, 1024]
# Inductor's cache has the other decision.
AGAINST: dict[str, dict[str, Any]] = {
    "padded": {"rows": "padded", "before": [0.25, 0.5]},
    "as_is": {"rows": "as_is", "before": [0.5, 0.25]},
    "none": {"mode": "fallback", "before": [0.5, 0.25]},
}
Ask = Callable[..., dict[str, Any]]

pytest.importorskip("triton")

pytestmark = pytest.mark.long


def key_in(result: dict[str, Any]) -> str:
    (row,) = result["rows"]
    key: str = row["key"]
    return key


def test_a_build_records_the_gemm_by_its_key(ask: Ask) -> None:
    """A measured GEMM becomes one row; its key has sizes, ranges and the operands padded free."""
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "pad mm m=560 n=1280 k=3420 bf16 a=row b=col"),
        ({"m": RANGE}, "pad mm m=2..1024 n=1280 k=3420 bf16 a=row b=col"),
        # Neither the name of a symbol nor the hint of its size is in a key.
        (
            {"m": RANGE, "symbol": "other", "hint": 768},
            "pad mm m=2..1024 n=1280 k=3420 bf16 a=row b=col",
        ),
        ({"produced": True}, "pad mm m=560 n=1280 k=3420 bf16 a=row b=col free=a"),
        ({"dtype": "float32", "k": 3421}, "pad mm m=560 n=1280 k=3421 f32 a=row b=col fp32=ieee"),
        ({"op": "addmm"}, "pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d"),
        ({"op": "bmm"}, "pad bmm batch=4 m=560 n=1280 k=3420 bf16 a=row b=col"),
        ({"op": "bmm", "m": RANGE}, "pad bmm batch=4 m=2..1024 n=1280 k=3420 bf16 a=row b=col"),
    )
    for case, key in cases:
        assert key_in(ask(**case, mode="tune")) == key, case
        kind_of(key).check(key)
    # A GEMM that inductor does not measure has no row.
    aligned = ask(mode="tune", k=3424)
    assert (aligned["rows"], aligned["events"], aligned["timed"]) == ([], [], [])


def test_a_range_across_another_size_stays_whole(ask: Ask) -> None:
    """The pass compares hints, so that no comparison ends the range at 1284 rows."""
    across = ask(mode="tune", m=[1025, 2048], hint=2048, k=1284)
    assert key_in(across) == "pad mm m=1025..2048 n=1280 k=1284 bf16 a=row b=col"
    assert across["guards"] == []


def test_a_build_records_the_winner_with_both_times_and_compiles_it(ask: Ask) -> None:
    """Padding wins outside the near-tie band only; times are in microseconds."""
    for winner, times in (("padded", [0.5, 0.25]), ("as_is", [0.25, 0.5]), ("as_is", [0.5, 0.49])):
        found = ask(mode="tune", times=times)
        (row,) = found["rows"]
        timings = {"as_is": times[0] * 1000, "padded": times[1] * 1000}
        assert (row["winner"], row["timings"]) == (winner, timings), times
        assert (row["time_us"], row["library_us"]) == (timings[winner], times[0] * 1000), times
        assert (found["pads"] > 0) == (winner == "padded"), times


def test_a_range_that_ends_unaligned_is_asked_without_a_region(ask: Ask) -> None:
    """A region has constant sizes, and the pass would pad the rows there; the question says so."""
    said = "a range that does not end at a multiple of 8"
    assert ask(mode="tune", m=[2, 1023], hint=1023)["reasons"] == [said]
    assert ask(mode="tune", m=RANGE)["reasons"] == [""]


def test_the_least_of_a_padded_product_copies_nothing(ask: Ask) -> None:
    """It is the product of padded operands as a whole: nothing of the result is cut off."""
    for op, produced in product(("mm", "bmm"), (False, True)):
        case = {"op": op, "m": 561, "produced": produced, "times": [0.25, 0.5]}
        sizes = [*([4] if op == "bmm" else []), 568, 1280]
        assert ask(mode="tune", **case)["products"] == [[sizes, sizes]], case


def test_a_row_decides_without_a_measurement(ask: Ask) -> None:
    """``padded`` puts padding into the graph, ``as_is`` does not; strict serving wants a row."""
    for m, op in product((560, RANGE), ("mm", "addmm", "bmm")):
        for rows in ("padded", "as_is"):
            found = ask(op=op, m=m, rows=rows)
            (event,) = found["events"]
            assert (event["name"], event["winner"]) == ("lookup.hit", rows), (m, op)
            assert (found["pads"] > 0, found["timed"]) == (rows == "padded", []), (m, op, rows)
        missed = ask(op=op, m=m)
        assert missed["error"].startswith(f"MissError: no row answers `pad {op} "), (m, op)
        assert missed["timed"] == [], (m, op)


def test_no_row_leaves_the_gemm_as_it_is(ask: Ask) -> None:
    """Fallback serving does not pad, reports one miss, and measures nothing."""
    for m, reason in ((560, "not_in_table"), (RANGE, "dynamic_dim")):
        missed = ask(mode="fallback", m=m)
        (event,) = missed["events"]
        found = (event["name"], event["reason"], event["choice"])
        assert found == ("lookup.missed", reason, "as_is"), reason
        assert (missed["pads"], missed["timed"], missed["error"]) == (0, [], None), reason


def test_inductors_own_cache_never_answers(ask: Ask) -> None:
    """A decision in it is ignored, with a row and without, and in a build."""
    for rows, case in AGAINST.items():
        assert (ask(**case)["pads"] > 0) == (rows == "padded"), rows
    built = ask(mode="tune", before=[0.25, 0.5], times=[0.5, 0.1])
    assert built["timed"] == [0.5, 0.1]
    assert built["rows"][0]["winner"] == "padded"
