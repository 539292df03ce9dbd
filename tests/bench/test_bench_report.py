"""What a benchmark concludes, prints and writes, from times that are made up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from warmup.bench.cells import BenchReport, BenchRequest, Cell, Pass, chart_of, document, draw
from warmup.cli.timings import run_bench, spell_bench
from warmup.core.errors import SettingsError
from warmup.core.roofline import Peaks
from warmup.core.rows import L2, Launch
from warmup.core.trial import Samples

WAVE = (0.99, 1.0, 1.01, 1.0, 1.005, 0.995, 1.0, 1.0)
DRIFT = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)
PEAKS = Peaks(tflops={"f16": 750.0}, gbps=4000.0, clock_mhz=1980, measured="2026-01-02")


def cell(
    backend: str, time_us: float | None, shape: str = "8x4096x1000", shares: Any = WAVE, **own: Any
) -> Cell:
    samples = None if time_us is None else Samples(tuple(time_us * share for share in shares))
    made = Cell(
        layer="mm",
        shape=shape,
        step=Pass.FORWARD,
        backend=backend,
        moved=4_000_000,
        flops=2_000_000_000,
        samples=samples,
        error=None if time_us is None else 1e-3,
        reason="it fell over" if time_us is None else "",
    )
    return replace(made, **own)


def report(*cells: Cell, **changes: Any) -> BenchReport:
    names = ("device", "torch", "triton", "cuda", "warmup", "date")
    made = BenchReport(
        benchmark="mm",
        provenance=dict.fromkeys(names, "13.0"),
        dtype="f16",
        launch=Launch.CUDAGRAPH,
        l2=L2.COLD,
        rounds=len(WAVE),
        backends=("eager", "triton-template", "table"),
        missing={"quack": "cannot be imported: ModuleNotFoundError: No module named 'quack'"},
        versions={},
        tolerance=5e-3,
        titles={"mm": ("Matmuls", "M x K x N")},
        peaks=PEAKS,
        cells=cells,
        table="ab" * 32,
        table_hits={"mm": 2},
    )
    return replace(made, **changes)


FOUND = report(
    cell("eager", 4.0),
    cell("triton-template", None),
    cell("table", 2.0),
    cell("eager", 9.0, "8x8x8"),
    cell("triton-template", 3.0, "8x8x8"),
    cell("table", 18.0, "8x8x8"),
)


def test_speedups_are_over_eager_at_the_same_place() -> None:
    """2x at one shape and half at the other make 1; a shape without times does not count."""
    assert [FOUND.speedup(one) for one in FOUND.cells] == [1.0, None, 2.0, 1.0, 3.0, 0.5]
    mean = FOUND.mean_speedup("table", Pass.FORWARD, "mm")
    assert mean is not None
    assert (mean["geomean"], mean["shapes"]) == (pytest.approx(1.0), 2)
    assert mean["interval"] == [pytest.approx(1.0), pytest.approx(1.0)]  # the drift cancels
    assert FOUND.mean_speedup("table", Pass.BOTH, None) is None


def test_the_verdict_takes_the_interval_and_the_band() -> None:
    """Slower and faster are beyond 3 %, with an interval of the rounds' ratios that excludes 1.

    Where eager varies by 70 %, there is no ratio, and the text says so.
    """
    wide = (0.7, 1.0, 1.3, 0.7, 1.0, 1.3, 0.7, 1.0)
    for eager, time_us, shares, verdict in (
        (WAVE, 5.1, WAVE, "within noise"),
        (WAVE, 4.9, WAVE, "within noise"),
        (WAVE, 5.3, WAVE, "slower"),
        (WAVE, 4.7, WAVE, "faster"),
        (WAVE, 5.3, wide, "within noise"),
        (DRIFT, 4.0, WAVE, "too busy"),
    ):
        made = report(cell("eager", 5.0, shares=eager), cell("table", time_us, shares=shares))
        ratio = made.table_ratio(made.cells[0].place)
        assert ratio is not None
        assert (ratio["best"], ratio["verdict"]) == ("eager", verdict), (time_us, shares)
        is_busy = verdict == "too busy"
        assert (ratio["ratio"] is None, made.speedup(made.cells[1]) is None) == (is_busy, is_busy)
        assert any("scatter too far" in line for line in spell_bench(made)) is is_busy
    alone = report(cell("eager", 5.0))
    assert alone.table_ratio(alone.cells[0].place) is None


def test_shares_of_the_peak_count_what_was_moved() -> None:
    """Products count operations, and bytes with a cold L2; layers count bytes with a cold L2."""
    (one,) = report(cell("eager", 5.0)).cells
    assert FOUND.share(one) == pytest.approx(2e9 / 5e6 / 750)
    assert FOUND.share(replace(one, moved=40_000_000)) == pytest.approx(2.0)
    layers = replace(FOUND, benchmark="layers")
    assert layers.share(one) == pytest.approx(4e6 / 5e3 / 4000)
    assert replace(layers, l2=L2.WARM).share(one) is None
    assert replace(FOUND, peaks=None).share(one) is None


def test_text_document_and_chart_say_the_same() -> None:
    """At most 80 columns; every cell with times, rates and reasons; a gap for a failed backend."""
    text = list(spell_bench(FOUND))
    assert max(map(len, text)) <= 80
    for said in (
        "quack: cannot be imported: ModuleNotFoundError",
        "8x4096x1000 forward triton-template: it fell over",
        "8x8x8 forward table: 6.000 of the time of triton-template, slower",
        "table abababababababab: hits mm 2, 0 misses; forward only",
        "eager 1.00x 1.00-1.00 (2), triton-template 3.00x",
    ):
        assert said in "\n".join(text)
    found = json.loads(json.dumps(document(FOUND)))
    assert [one["time_us"] for one in found["cells"]] == [4.0, None, 2.0, 9.0, 3.0, 18.0]
    assert found["cells"][2]["tflops"] == pytest.approx(1000.0)
    assert found["cells"][1]["reason"] == "it fell over"
    assert {one["layer"] for one in found["speedup_over_eager"]} == {"mm", None}
    assert [one["verdict"] for one in found["table_over_best"]] == ["faster", "slower"]
    chart = chart_of(FOUND, "mm")
    assert chart.groups == ("8x4096x1000 forward", "8x8x8 forward")
    assert list(chart.series) == ["eager", "triton-template", "table"]
    assert chart.series["triton-template"][0] is None
    assert chart.reference == ("measured peak", 750.0)
    bars = [bar for series in chart.series.values() for bar in series if bar is not None]
    assert len(bars) == 5
    assert all(low <= value <= high for low, value, high in bars)


def test_charts_of_many_bars_and_of_none_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart = chart_of(FOUND, "mm")
    groups = tuple(f"a long name of group {number}" for number in range(12))
    series = {f"s{n}": ((n + 0.5, n + 1.0, n + 1.5),) * 12 for n in range(9)}
    for each in (chart, replace(chart, groups=groups, series=series), replace(chart, series={})):
        draw(each, tmp_path / "charts" / "one.png")
        assert (tmp_path / "charts" / "one.png").read_bytes().startswith(b"\x89PNG")


def run(kept: BenchReport, out: Path | None, end: BaseException | None = None) -> int:
    """Run a benchmark that reports *kept* and then ends with *end*; return the exit code."""

    def bench(_: BenchRequest, say: object, keep: Callable[[BenchReport], None]) -> BenchReport:
        keep(kept)
        if end is not None:
            raise end
        return kept

    request = BenchRequest(benchmark="mm", dtype="f16", rounds=8, out=out)
    try:
        run_bench(bench, request, as_json=False)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def test_what_is_finished_is_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C the code is 130; an error goes on; both leave the report and the document.

    The code is 1 for a wrong cell, or where no backend was compared.
    """
    out = tmp_path / "out"
    assert run(FOUND, out, KeyboardInterrupt()) == 130
    printed = capsys.readouterr()
    assert f"interrupted: finished shapes are printed, and in {out}" in printed.err
    assert "8x8x8" in printed.out
    assert [path.name for path in out.iterdir()] == ["bench-mm.json"]
    with pytest.raises(SettingsError, match="gone"):
        run(FOUND, None, SettingsError("gone"))
    assert "8x8x8" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    wrong = replace(FOUND, cells=(*FOUND.cells, cell("own", None, is_wrong=True)))
    alone = replace(FOUND, cells=FOUND.cells[:1])
    assert [run(one, out) for one in (FOUND, wrong, alone)] == [0, 1, 1]
    assert "no chart: charts are drawn by matplotlib" in capsys.readouterr().err
