"""What a comparison says, on made-up numbers: intervals, verdicts, text and chart."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sample_tables import make_runtime

from warmup.bench.compare import (
    BucketTime,
    CompareProgress,
    Comparison,
    How,
    Origin,
    Race,
    Result,
    Start,
    Variant,
    document_of_comparison,
    parse_variants,
)
from warmup.cli.timings import heading, sentences, spell_comparison
from warmup.core.buckets import Bucket
from warmup.core.errors import SettingsError
from warmup.core.rows import L2, Launch
from warmup.core.trial import Samples

FLAT = (100.0,) * 8
DRIFTING = tuple(100.0 * factor for factor in (1.0, 1.1, 1.3, 1.6, 1.2, 1.4, 1.5, 1.7))


def cells(
    *by_bucket: Sequence[float], error: float = 0.0, host_us: float = 1.0
) -> tuple[BucketTime, ...]:
    return tuple(
        BucketTime(
            device=Samples(tuple(times)),
            wall=Samples(tuple(times)),
            error=error,
            limit=0.02,
            host=Samples((host_us,) * len(times)),
        )
        for times in by_bucket
    )


def result(name: str, *by_bucket: Sequence[float], **changes: object) -> Result:
    how = How(name) if name in set(How) else How.DEFAULT
    start: Start = {
        "process_seconds": 12.5,
        "call_seconds": 3.25,
        "phases": {"import": 3.5, "load": 1.5, "install": 1.0, "aot": 1.25, "measuring": 2.0},
        "benchmarks": 8,
        "hits": 2,
        "misses": 1,
        "miss_reasons": {},
        "peak_bytes": 2**20,
    }
    fields: dict[str, object] = {
        "variant": Variant(name, how, "m.py:M"),
        "start": start,
        "cells": cells(*by_bucket),
        "failure": None,
        "log": None,
    }
    return Result(**{**fields, **changes})  # type: ignore[arg-type]


def report(*results: Result) -> Comparison:
    """``report(*results)``: a comparison over the buckets 16 and 560."""
    count = max(len(one.cells) for one in results)
    origin = Origin(
        model="m.py:M",
        inputs=(),
        device="cuda:0",
        dtype="bf16",
        l2=L2.WARM,
        launch=Launch.CUDAGRAPH,
        rounds=8,
        seed=0,
        created="2026-01-02T03:04:05Z",
        warmup="0.1.0",
        runtime=make_runtime(),
        table="tables/m.json",
        digest="0123456789abcdef0123",
    )
    return Comparison(
        origin=origin,
        buckets=tuple(Bucket((("seqlen", size),)) for size in (16, 560)[:count]),
        results=results,
        remarks=("a remark",),
    )


def faster(times: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(time / factor for time in times)


def versus(own: Sequence[float], base: Sequence[float] = FLAT) -> tuple[Comparison, Result]:
    """Return a comparison of a table with default mode in one bucket, and the table's result."""
    found = report(result("default", base), result("table", own))
    return found, found.results[1]


def test_verdicts_have_the_ratio_and_its_interval() -> None:
    """Ratios are taken round by round: a drift that hits both leaves the interval narrow.

    What is faster in some rounds and slower in others is not claimed, whatever the mean.
    """
    drift = tuple(100 + (time - 100) / 4 for time in DRIFTING)
    gain = (75.0, 75.5, 76.0, 75.2, 75.8, 75.1, 75.6, 75.9)
    mixed = (90.0, 110.0, 95.0, 105.0, 92.0, 108.0, 97.0, 103.0)
    for own, base, said in (
        (faster(drift, 1.32), drift, "1.32x faster (1.32 to 1.32)"),
        (gain, FLAT, "1.32x faster (1.32 to 1.33)"),
        (faster(FLAT, 0.8), FLAT, "slower, at 0.80x the speed (0.80 to 0.80)"),
        (mixed, FLAT, "no measurable gain: 1.00x ("),
    ):
        found, table = versus(own, base)
        assert found.verdict(table).startswith(said)
    # Twice as fast in one bucket and half as fast in the other is no gain.
    both = result("table", faster(FLAT, 2.0), faster(FLAT, 0.5))
    found = report(result("default", FLAT, FLAT), both)
    assert [one and one.value for one in found.speedups(both)] == [2.0, 0.5]
    assert str(found.overall(both)) == "no measurable gain: 1.00x (1.00 to 1.00)"
    # The ratio is that of the rounded medians, which is what a reader can check.
    found, table = versus((8.8851,) * 6, (10.0049,) * 6)
    assert [one.cells[0].median_us for one in found.results] == [10.0, 8.885]
    assert [one and one.value for one in found.speedups(table)] == [round(10 / 8.885, 2)]


def test_a_busy_machine_has_no_verdict_and_no_ratio() -> None:
    """Default's times vary by 70 %: neither its bucket nor the mean of all has a speed-up."""
    own = faster(FLAT, 1.32)
    found = report(result("default", FLAT, DRIFTING), result("table", own, own))
    assert [speedup is None for speedup in found.speedups(found.results[1])] == [False, True]
    assert found.overall(found.results[1]) is None
    said = found.verdict(found.results[1])
    assert said.startswith("no verdict: this machine is too busy: the 95 % interval of default in")
    assert "seqlen=560" in said
    assert "x faster" not in "\n".join(spell_comparison(found))


def test_what_failed_or_is_wrong_gets_no_speed_up() -> None:
    """It says why, and the others stay; without a sound baseline nothing is faster than it."""
    wrong = (*cells(faster(FLAT, 2.0)), *cells(faster(FLAT, 2.0), error=0.5))
    found = report(result("default", FLAT, FLAT), result("table", cells=wrong))
    assert found.speedups(found.results[1]) == ()
    assert found.verdict(found.results[1]) == (
        "out of tolerance: its output is 5.0e-01 away from eager's in seqlen=560 (at most 2e-02); "
        "no speed-up is claimed"
    )
    (cell,) = cells(FLAT, error=float("nan"))  # an output that is no number
    assert not cell.agrees
    lost = result("max-autotune", failure="was killed by SIGSEGV", start=None, cells=())
    found = report(result("default", FLAT), lost, result("table", faster(FLAT, 1.5)))
    assert found.verdict(lost) == "failed: was killed by SIGSEGV"
    assert found.verdict(found.results[2]).startswith("1.50x faster")
    found = report(result("default", cells=cells(FLAT, error=1)), result("table", FLAT))
    assert found.verdict(found.results[1]) == "no speed-up: default failed"


def test_only_what_serves_from_a_table_decides_the_exit_code() -> None:
    """A failed table is named, padded or not; a failed max-autotune is only in the report."""
    lost: dict[str, object] = {"failure": "no", "cells": ()}
    others = (result("default", FLAT), result("max-autotune", **lost))
    for served, failed in (
        ((result("table", FLAT),), ()),
        ((result("table", **lost),), ("table",)),
        ((result("table", cells=cells(FLAT, error=1)),), ("table",)),
        ((result("table", FLAT), result("table-padded", **lost)), ("table-padded",)),
    ):
        assert report(*others, *served).failed == failed


def test_the_document_is_json_and_repeats_the_text() -> None:
    """What the sentences say stands in the document too, with every single time."""
    found, table = versus(faster(FLAT, 1.25))
    read = json.loads(json.dumps(document_of_comparison(found)))
    assert read["variants"][1]["speedup"] == {"value": 1.25, "low": 1.25, "high": 1.25}
    assert read["variants"][1]["verdict"] == found.verdict(table)
    assert read["variants"][1]["start"]["benchmarks"] == 8
    cell = read["buckets"][0]["variants"][1]
    assert (cell["name"], cell["median_us"], cell["device_times_us"]) == ("table", 80.0, [80.0] * 8)
    assert read["origin"]["runtime"]["device"]["name"] == "NVIDIA H200"


def test_the_text_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids with long names, times of ten milliseconds and long remarks; phases with -v alone.

    It says where it ran, and the largest error of all buckets, marked where out of tolerance.
    """
    slow = tuple(time * 98.765 for time in DRIFTING)
    found = report(result("default", slow, slow), result("max-autotune", FLAT, slow))
    found = replace(found, remarks=("a remark of many words " * 8,))
    assert max(map(len, spell_comparison(found))) <= 80
    assert "seconds by phase of the starts: -v" in spell_comparison(found)
    monkeypatch.setattr("warmup.cli.timings.is_verbose", lambda: True)
    text = list(spell_comparison(found))
    assert max(map(len, text)) <= 80
    verdict = next(i for i, line in enumerate(text) if line.startswith("speed-up over default"))
    phases = next(i for i, line in enumerate(text) if line.startswith("what the starts were"))
    assert verdict < phases
    near = (*cells(FLAT, error=1e-3), *cells(FLAT, error=2e-3))
    wrong = (*cells(FLAT, error=0.5), *cells(FLAT, error=0.001))
    lost = result("table", failure="no", cells=())
    text = list(
        spell_comparison(report(result("default", cells=near), result("m", cells=wrong), lost))
    )
    begin = next(i for i, line in enumerate(text) if line.startswith("start of"))
    words = [line.split() for line in text[begin : begin + 4]]
    assert [each[-1] for each in words] == ["error", "2.0e-03", "5.0e-01!", "-"]
    found = report(result("default", FLAT))
    head = "\n".join(heading(found))
    for word in ("NVIDIA H200", "torch 2.13.0", "0123456789abcdef", "2026-01-02", "8 rounds"):
        assert word in head
    assert list(sentences(found))[1:] == ["  default: the baseline", "note: a remark"]


def test_every_variant_may_be_as_far_from_eager_as_default_mode() -> None:
    """One and a half times default's error, at least the tolerance, at most ten of them."""
    for default, limit in ((0.025, 0.0375), (0.001, 0.02), (0.21, 0.02)):
        race = Race(Path(), Path(), {}, 1.0, CompareProgress(), contextlib.ExitStack())
        entrants: list[Any] = [
            SimpleNamespace(
                failure=None, variant=SimpleNamespace(name=name), errors=[(error, 0.02)]
            )
            for name, error in {"eager": 0.0, "default": default, "table": 0.0235}.items()
        ]
        race.entrants = entrants
        race.allow_rounding()
        own = [each.errors[0][1] for each in entrants]
        assert own == [pytest.approx(limit)] * 3, default


def test_variants_are_parsed() -> None:
    """Eager and default come first, named or not; without names all are compared.

    Padded weights are among them where the table pads any.
    """
    found = parse_variants("table, default,padded=p.py:P+table,plain=p.py", "m.py:M")
    assert [(one.name, one.how.value, one.model) for one in found] == [
        ("eager", "eager", "m.py:M"),
        ("default", "default", "m.py:M"),
        ("table", "table", "m.py:M"),
        ("padded", "table", "p.py:P"),
        ("plain", "default", "p.py"),
    ]
    for pads, last in ((False, ["table"]), (True, ["table", "table-padded"])):
        found = parse_variants(None, "m.py:M", pads=pads)
        assert [one.name for one in found] == ["eager", "default", "max-autotune", *last], pads
    for text in (
        *("eager,best", "eager,eager", "", "table,", "table,padded", "table,padded="),
        *("table=p.py:P", "padded=p.py:P+fast", "../padded=p.py:P", "a=p.py:P,a=q.py:Q"),
    ):
        with pytest.raises(SettingsError, match="--variants"):
            parse_variants(text, "m.py:M")
