"""Rows of kind ``pad``: inductor's pad_mm pass on a stated H100, on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.registry import check_key

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/cuda_padding.py")
Run = Callable[..., Any]
RANGE = [2, 1024]
ELSEWHERE = {"m": RANGE, "symbol": "other", "hint": 768}
CASES: dict[str, dict[str, Any]] = {
    "mm": {"mode": "tune"},
    "mm ranged": {"mode": "tune", "m": RANGE},
    "mm ranged, another symbol and hint": {"mode": "tune", **ELSEWHERE},
    "mm from a producer": {"mode": "tune", "produced": True},
    "mm in f32": {"mode": "tune", "dtype": "float32", "k": 3421},
    "addmm": {"op": "addmm", "mode": "tune"},
    "bmm": {"op": "bmm", "mode": "tune"},
    "bmm ranged": {"op": "bmm", "mode": "tune", "m": RANGE},
    "mm ranged across its n": {"mode": "tune", "m": [1025, 2048], "hint": 2048, "k": 1284},
    "slower padded": {"mode": "tune", "times": [0.25, 0.5]},
    "hardly faster padded": {"mode": "tune", "times": [0.5, 0.49]},
    "aligned": {"mode": "tune", "k": 3424},
    "mm ranged to an odd end": {"mode": "tune", "m": [2, 1023], "hint": 1023},
    "padded, cache against": {"rows": "padded", "before": [0.25, 0.5]},
    "as_is, cache against": {"rows": "as_is", "before": [0.5, 0.25]},
    "none, cache for padding": {"mode": "fallback", "before": [0.5, 0.25]},
    "built, cache against": {"mode": "tune", "before": [0.25, 0.5], "times": [0.5, 0.1]},
    **{
        f"{op} {rows} {'ranged' if m is RANGE else 'static'}": {"op": op, "rows": rows, "m": m}
        for op in ("mm", "addmm", "bmm")
        for rows in ("padded", "as_is", "none")
        for m in (560, RANGE)
    },
    "fallback": {"mode": "fallback"},
    "fallback ranged": {"mode": "fallback", "m": RANGE},
}

pytest.importorskip("triton")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def results(
    run_program: Run, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("caches")
    found: dict[str, dict[str, Any]] = run_program(folder, PROGRAM, json.dumps(CASES))
    return found


def key_in(result: dict[str, Any]) -> str:
    (row,) = result["rows"]
    key: str = row["key"]
    return key


def test_a_build_records_the_gemm_by_its_key(results: dict[str, dict[str, Any]]) -> None:
    """A measured GEMM becomes one row; its key has sizes, ranges and the operands padded free."""
    for case, key in (
        ("mm", "pad mm m=560 n=1280 k=3420 bf16 a=row b=col"),
        ("mm ranged", "pad mm m=2..1024 n=1280 k=3420 bf16 a=row b=col"),
        ("mm from a producer", "pad mm m=560 n=1280 k=3420 bf16 a=row b=col free=a"),
        ("mm in f32", "pad mm m=560 n=1280 k=3421 f32 a=row b=col fp32=ieee"),
        ("addmm", "pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d"),
        ("bmm", "pad bmm batch=4 m=560 n=1280 k=3420 bf16 a=row b=col"),
        ("bmm ranged", "pad bmm batch=4 m=2..1024 n=1280 k=3420 bf16 a=row b=col"),
    ):
        assert key_in(results[case]) == key
        check_key(key)


def test_a_range_across_another_size_stays_whole(results: dict[str, dict[str, Any]]) -> None:
    """The pass compares hints, so that no comparison ends the range at 1284 rows."""
    across = results["mm ranged across its n"]
    assert key_in(across) == "pad mm m=1025..2048 n=1280 k=1284 bf16 a=row b=col"
    assert across["guards"] == []


def test_a_build_records_the_winner_and_both_times(results: dict[str, dict[str, Any]]) -> None:
    """Padding wins outside the near-tie band only; times are in microseconds."""
    for case, winner, as_is, padded in (
        ("mm", "padded", 500.0, 250.0),
        ("slower padded", "as_is", 250.0, 500.0),
        ("hardly faster padded", "as_is", 500.0, 490.0),
    ):
        (row,) = results[case]["rows"]
        times = {"as_is": as_is, "padded": padded}
        assert row["winner"] == winner, (case, winner, as_is, padded)
        assert row["timings"] == times, (case, winner, as_is, padded)
        assert (row["time_us"], row["library_us"]) == (times[winner], as_is), (
            case,
            winner,
            as_is,
            padded,
        )


def test_a_range_that_ends_unaligned_is_asked_without_a_region(
    results: dict[str, dict[str, Any]],
) -> None:
    """A region has constant sizes, and the pass would pad the rows there; the question says so."""
    said = "a range that does not end at a multiple of 8"
    assert results["mm ranged to an odd end"]["reasons"] == [said]
    assert results["mm ranged"]["reasons"] == [""]


def test_a_build_compiles_the_recorded_decision(results: dict[str, dict[str, Any]]) -> None:
    """A build pads exactly the GEMMs whose row says padded."""
    assert results["mm"]["pads"] > 0
    assert results["slower padded"]["pads"] == 0


def test_the_same_gemm_has_one_key(results: dict[str, dict[str, Any]]) -> None:
    """Neither the name of a symbol nor the hint of its size is in a key."""
    ranged, elsewhere = results["mm ranged"], results["mm ranged, another symbol and hint"]
    assert key_in(ranged) == key_in(elsewhere)


def test_a_gemm_that_inductor_does_not_measure_has_no_row(
    results: dict[str, dict[str, Any]],
) -> None:
    aligned = results["aligned"]
    assert (aligned["rows"], aligned["events"], aligned["timed"]) == ([], [], [])


def test_a_row_decides_without_a_measurement(results: dict[str, dict[str, Any]]) -> None:
    """``padded`` puts padding into the graph, ``as_is`` does not; each is one hit, none timed."""
    for m, op in product(("static", "ranged"), ("mm", "addmm", "bmm")):
        padded, as_is = results[f"{op} padded {m}"], results[f"{op} as_is {m}"]
        assert padded["pads"] > 0, (m, op)
        assert as_is["pads"] == 0, (m, op)
        assert [event["winner"] for event in padded["events"]] == ["padded"], (m, op)
        assert [event["winner"] for event in as_is["events"]] == ["as_is"], (m, op)
        assert {event["name"] for event in padded["events"] + as_is["events"]} == {"lookup.hit"}, (
            m,
            op,
        )
        assert padded["timed"] == as_is["timed"] == [], (m, op)


def test_no_row_is_an_error_when_strict(results: dict[str, dict[str, Any]]) -> None:
    """Strict serving raises a MissError with the key, and measures nothing."""
    for m, op in product(("static", "ranged"), ("mm", "addmm", "bmm")):
        missed = results[f"{op} none {m}"]
        assert missed["error"].startswith(f"MissError: no row answers `pad {op} "), (m, op)
        assert missed["timed"] == [], (m, op)


def test_no_row_leaves_the_gemm_as_it_is(results: dict[str, dict[str, Any]]) -> None:
    """Fallback serving does not pad, reports one miss, and measures nothing."""
    for case, reason in (("fallback", "not_in_table"), ("fallback ranged", "dynamic_dim")):
        missed = results[case]
        assert (missed["pads"], missed["timed"], missed["error"]) == (0, [], None), (case, reason)
        assert [(e["name"], e["reason"], e["choice"]) for e in missed["events"]] == [
            ("lookup.missed", reason, "as_is")
        ], (case, reason)


def test_inductors_own_cache_never_answers(results: dict[str, dict[str, Any]]) -> None:
    """A decision in inductor's cache is ignored, with a row and without."""
    assert results["padded, cache against"]["pads"] > 0
    assert results["as_is, cache against"]["pads"] == 0
    assert results["none, cache for padding"]["pads"] == 0
    # A build times the padded form although inductor's cache has a decision.
    built = results["built, cache against"]
    assert built["timed"] == [0.5, 0.1]
    assert built["rows"][0]["winner"] == "padded"


def test_inductors_memo_never_answers_for_the_table(run_program: Run, tmp_path: Path) -> None:
    """Inductor's memo of decisions, off by default, is ignored, with a row and without."""
    cases = {label: CASES[label] for label in CASES if "cache" in label and "built" not in label}
    memo = {"TORCHINDUCTOR_ENABLE_CACHING_MODULE": "1"}
    found = run_program(tmp_path, PROGRAM, json.dumps(cases), **memo)
    assert {label: (one["pads"] > 0, len(one["events"])) for label, one in found.items()} == {
        "padded, cache against": (True, 1),
        "as_is, cache against": (False, 1),
        "none, cache for padding": (False, 1),
    }
