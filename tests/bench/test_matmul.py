"""What a benchmark of products concludes, prints and writes, from times that are made up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from warmup.bench.files import write_json
from warmup.bench.matmul import timing
from warmup.bench.matmul.against import read_against
from warmup.bench.matmul.files import charts_of, document
from warmup.bench.matmul.report import (
    TABLE_COLUMN,
    TORCH_COLUMN,
    HostSplit,
    MatmulVerdict,
    MmReport,
    ShapeResult,
    Timed,
    columns_for,
    shown_us,
)
from warmup.bench.matmul.shapes import CLASSIC, Shape, parse_shapes
from warmup.cli.bench_mm import spell
from warmup.core.errors import BuildError, SettingsError
from warmup.core.method import L2, Launch, Method
from warmup.core.roofline import Peaks
from warmup.core.samples import Samples

SHAPE = Shape(128, 4096, 1000)
PEAKS = Peaks(tflops={"f16": 750.0}, gbps=4000.0, clock_mhz=1980, measured="2026-01-01T00:00:00Z")
COLUMNS = columns_for("cuda", "f16")
WAVE = (0.99, 1.0, 1.01, 1.0, 1.005, 0.995, 1.0, 1.0)


def times(median: float, shares: tuple[float, ...] = WAVE) -> Samples:
    return Samples(tuple(median * share for share in shares))


def timed(median: float, shares: tuple[float, ...] = WAVE, total: float = 30.0) -> Timed:
    host = HostSplit(total=30.0, guards=2.0, allocation=3.0, launch=5.0)
    samples = times(median, shares)
    return Timed(device=samples, total=times(total), error=2e-4, kernel="k", host=host)


def result(medians: Mapping[str, float], shape: Shape = SHAPE, **dropped: str) -> ShapeResult:
    columns = {name: timed(median) for name, median in medians.items()}
    hits = 1 if TABLE_COLUMN in medians else None
    return ShapeResult(shape=shape, timed=columns, dropped=dropped, hits=hits)


def report(*shapes: ShapeResult, **changes: Any) -> MmReport:
    made = MmReport(
        provenance={
            "device": "NVIDIA H200",
            "torch": "2.11.0",
            "triton": "3.6.0",
            "warmup": "0.1.0",
            "date": "2026-01-01T00:00:00Z",
        },
        device_type="cuda",
        dtype="f16",
        launch=Launch.CUDAGRAPH,
        l2=L2.COLD,
        rounds=len(WAVE),
        near_tie=0.03,
        peaks=PEAKS,
        table="ab" * 32,
        shapes=shapes,
    )
    return replace(made, **changes)


def full_report() -> MmReport:
    medians = (5.31, 6.02, 5.33, 5.18, 5.04)
    return report(
        *(
            result({n: m * (1 + i / 7) for n, m in zip(COLUMNS, medians, strict=True)}, shape)
            for i, shape in enumerate(CLASSIC)
        )
    )


def test_the_classic_shapes_are_spelled_m_k_n() -> None:
    """The ten shapes, spelled and parsed again, are the ten shapes, in order."""
    text = ",".join(map(str, CLASSIC))
    assert (parse_shapes(text), text[:27]) == (CLASSIC, "128x9216x4096,128x4096x4096")
    assert len(CLASSIC) == 10


@pytest.mark.parametrize("text", ["", "1x2", "1x2x0", "1x2x3x4", "axbxc", "1x2x3,1x2x3", "1x2x-3"])
def test_a_bad_shape_is_refused(text: str) -> None:
    """A shape that is not three positive sizes, or that is given twice, is an error."""
    with pytest.raises(SettingsError, match="--shapes"):
        parse_shapes(text)


def test_rates_come_from_the_printed_time() -> None:
    """TFLOP/s, GB/s and the share of the peak are those of the median as it is printed."""
    one = timed(5.0449)
    rates = report().rates(SHAPE, TORCH_COLUMN, one)
    moved = 2 * (128 * 4096 + 4096 * 1000 + 128 * 1000)
    assert (shown_us(one.device.median), one.device_us) == ("5.04", 5.04)
    assert rates.tflops == pytest.approx(2 * 128 * 4096 * 1000 / 5.04e6)
    assert rates.gbps == pytest.approx(moved / 5.04e3)
    assert rates.share == pytest.approx(max(rates.tflops / 750, rates.gbps / 4000))


def test_a_warm_cache_counts_operations_only() -> None:
    """With a warm L2 the share is that of the operations, however many bytes were moved."""
    rates = report(l2=L2.WARM).rates(SHAPE, TORCH_COLUMN, timed(5.0))
    assert rates.share == pytest.approx(rates.tflops / 750)


def test_without_peaks_there_is_no_share() -> None:
    """On a device without measured peaks the share is None, and a dash in the text."""
    made = report(result({TORCH_COLUMN: 5.0, TABLE_COLUMN: 5.0}), peaks=None)
    assert made.rates(SHAPE, TORCH_COLUMN, timed(5.0)).share is None
    assert "%" not in next(line for line in spell(made) if "within noise" in line)


def test_a_time_above_the_peak_is_said() -> None:
    """A column that is faster than the measured peaks allow is named as what cannot be right."""
    made = report(result({TORCH_COLUMN: 1.0, TABLE_COLUMN: 50.0}))
    assert made.over_peak == (f"torch at {SHAPE}",)
    assert any("cannot be right" in line for line in spell(made))


def test_tf32_has_a_peak_and_no_verdict_of_its_own() -> None:
    """TF32 at three times the rate of f32 can be right, and the table is compared with f32."""
    peaks = replace(PEAKS, tflops={"f32": 50.0, "tf32": 400.0})
    medians = {TORCH_COLUMN: 30.0, "torch-tf32": 10.0, TABLE_COLUMN: 30.0}
    made = report(result(medians), dtype="f32", peaks=peaks)
    assert made.over_peak == ()
    assert any("50 TFLOP/s in f32, 400 TFLOP/s in tf32" in line for line in spell(made))
    found = made.comparisons[SHAPE]
    assert (found.best, found.verdict) == (TORCH_COLUMN, MatmulVerdict.WITHIN_NOISE)


@pytest.mark.parametrize(
    ("table_us", "shares", "verdict"),
    [
        (5.1, WAVE, MatmulVerdict.WITHIN_NOISE),  # 2 % slower in every round, within the band
        (4.9, WAVE, MatmulVerdict.WITHIN_NOISE),
        (5.3, WAVE, MatmulVerdict.SLOWER),
        (4.7, WAVE, MatmulVerdict.FASTER),
        (5.3, (0.7, 1.0, 1.3, 0.7, 1.0, 1.3, 0.7, 1.0), MatmulVerdict.WITHIN_NOISE),  # holds 1
    ],
)
def test_the_verdict_takes_the_interval_and_the_band(
    table_us: float, shares: tuple[float, ...], verdict: MatmulVerdict
) -> None:
    """Slower and faster are those beyond the band whose interval of paired ratios excludes 1."""
    one = result({TORCH_COLUMN: 5.0, "triton": 6.0})
    one = replace(one, timed={**one.timed, TABLE_COLUMN: timed(table_us, shares)})
    found = one.comparison(0.03)
    assert found is not None
    assert (found.best, found.verdict) == (TORCH_COLUMN, verdict)


def test_a_drift_that_hits_both_does_not_widen_the_interval() -> None:
    """The ratio is taken round by round: a common drift cancels."""
    drift = (1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12, 1.14)
    one = ShapeResult(
        shape=SHAPE,
        timed={TORCH_COLUMN: timed(5.0, drift), TABLE_COLUMN: timed(5.5, drift)},
        dropped={},
    )
    found = one.comparison(0.03)
    assert found is not None
    assert found.interval == (pytest.approx(1.1), pytest.approx(1.1))


def test_a_busy_machine_has_no_verdict_and_no_ratio() -> None:
    """Where the best other column varies by 70 %, neither the shape nor the summary has a ratio."""
    drift = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)
    one = ShapeResult(
        shape=SHAPE,
        timed={TORCH_COLUMN: timed(5.0, drift), TABLE_COLUMN: timed(5.5)},
        dropped={},
    )
    made = report(one)
    found = one.comparison(0.03)
    assert found is not None
    assert (found.ratio, found.interval, found.verdict) == (None, None, MatmulVerdict.TOO_BUSY)
    assert made.speedup is None
    text = "\n".join(spell(made))
    assert "no verdict: this machine is too busy" in text
    assert "geometric mean" not in text


@pytest.mark.parametrize("medians", [{}, {TABLE_COLUMN: 5.0}, {TORCH_COLUMN: 5.0}])
def test_without_both_there_is_no_comparison(medians: dict[str, float]) -> None:
    """A shape where the table's column, or every other one, is missing has no verdict."""
    made = report(result(medians))
    assert (dict(made.comparisons), made.speedup) == ({}, None)
    assert any("no shape was timed" in line for line in spell(made))


def test_the_summary_follows_from_the_printed_table() -> None:
    """The printed speed-up is the geometric mean of the printed medians."""
    lines = list(spell(full_report()))
    start = next(i for i, line in enumerate(lines) if line.startswith("GPU us per call"))
    cells = [line.split() for line in lines[start + 3 : start + 3 + len(CLASSIC)]]
    ratios = [float(row[1]) / float(row[-2]) for row in cells]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert f"table over torch: {mean:.2f}x, geometric mean of 10 shapes" in lines


def test_the_text_fits_80_columns() -> None:
    """No line about the ten shapes is longer than a terminal is wide."""
    assert max(map(len, spell(full_report()))) <= 80


def test_a_build_that_stopped_early_is_a_reason_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table that lacks the shape misses it, and the reason says why the shape was not built."""

    def missing(_name: str, _operands: object) -> NoReturn:
        raise BuildError("no row")

    monkeypatch.setattr(timing, "make_column", missing)
    method = Method(launch=Launch.EAGER, l2=L2.WARM)
    setup = timing.MatmulSetup(torch.device("cpu"), "f32", method, 2)
    dropped = timing.time_columns(Shape(4, 4, 4), setup, None, "out of memory").dropped
    assert dropped["torch"] == "no row"
    assert dropped[TABLE_COLUMN] == "no row; its build stopped early: out of memory"


def test_what_was_dropped_is_said_with_its_reason() -> None:
    """A reason that holds for every shape is said once, another one with its shapes."""
    other = Shape(64, 64, 64)
    made = report(
        result({TORCH_COLUMN: 5.0}, triton="no backend", table="nothing to choose"),
        result({TORCH_COLUMN: 5.0}, other, triton="no backend"),
    )
    lines = list(spell(made))
    assert "no triton: no backend" in lines
    assert f"no table at {SHAPE}: nothing to choose" in lines


def test_the_document_holds_every_round(tmp_path: Path) -> None:
    """The JSON file says what was measured, round by round, and what follows from it."""
    made = full_report()
    written = json.loads(write_json(document(made), tmp_path / "made.json").read_text())
    assert written == json.loads(json.dumps(document(made)))
    first = written["shapes"][0]
    assert first["shape"] == {"m": 128, "k": 9216, "n": 4096}
    assert len(first["columns"][TABLE_COLUMN]["device_rounds_us"]) == made.rounds
    assert (first["table_over_best"]["best"], first["table_hits"]) == ("inductor-triton", 1)
    assert written["summary"]["verdicts"] == {"within noise": 10}
    assert (written["launch"], written["l2"], written["rounds"]) == ("cudagraph", "cold", 8)


def test_charts_leave_a_gap_where_a_column_was_dropped() -> None:
    """A column without a time at one shape has None there; one without any time is no series."""
    other = Shape(64, 64, 64)
    made = report(result({TORCH_COLUMN: 5.0, "triton": 6.0}), result({TORCH_COLUMN: 5.0}, other))
    time, rate = charts_of(document(made)).values()
    assert [series.name for series in time.series] == [TORCH_COLUMN, "triton"]
    assert [[v is None for v in one.series[1].values] for one in (time, rate)] == [
        [False, True]
    ] * 2
    assert (time.reference, rate.reference) == (None, ("measured peak", 750.0))


@pytest.mark.parametrize("pick", ["time", "tflops"])
def test_error_bars_hold_the_value(pick: str) -> None:
    """In both charts the bounds stand in order around the value, also where a rate inverts them."""
    series = charts_of(document(full_report()))[pick].series
    bars = [bar for one in series for bar in zip(one.low, one.values, one.high, strict=True)]
    assert len(bars) == len(CLASSIC) * len(COLUMNS)
    for low, value, high in bars:
        assert low is not None
        assert value is not None
        assert high is not None
        assert low <= value * 1.001
        assert value <= high * 1.001


def test_importing_the_command_leaves_torch_alone(
    run_python: Callable[..., Any],
) -> None:
    """The command, its text and its files are loaded without torch."""
    code = (
        "import sys, warmup.cli.bench_mm, warmup.bench.matmul.files\n"
        "print({'torch', 'triton', 'matplotlib'} & set(sys.modules))"
    )
    assert run_python("-c", code).stdout.strip() == "set()"


def test_each_device_has_the_columns_that_it_can_have() -> None:
    """TF32 is a column for f32 on a GPU alone, and the C++ template one on a CPU."""
    assert COLUMNS == ("torch", "triton", "inductor-aten", "inductor-triton", "table")
    assert "torch-tf32" in columns_for("cuda", "f32")
    assert "torch-tf32" not in columns_for("cpu", "f32")
    assert "inductor-cpp" in columns_for("cpu", "f16")


def test_six_columns_fit_80_columns() -> None:
    """With TF32 there are six; those that do not fit stand in a table below."""
    names = columns_for("cuda", "f32")
    assert len(names) == 6
    shapes = (result(dict.fromkeys(names, 321.7), shape) for shape in CLASSIC)
    lines = list(spell(report(*shapes, dtype="f32")))
    assert max(map(len, lines)) <= 80
    assert any("tf32" in line for line in lines)


def test_each_model_has_a_mean() -> None:
    """Three shapes of AlexNet at twice torch's speed, the others at its speed."""
    made = report(
        *(
            result({TORCH_COLUMN: 6.0, TABLE_COLUMN: 3.0 if number < 3 else 6.0}, shape)
            for number, shape in enumerate(CLASSIC)
        )
    )
    assert made.models == ("AlexNet", "BERT", "GPT-2")
    assert made.mean_speedup(TABLE_COLUMN, "AlexNet") == pytest.approx(2.0)
    assert made.mean_speedup(TABLE_COLUMN, "BERT") == pytest.approx(1.0)
    assert any(line.split() == ["AlexNet", "1.00x", "2.00x"] for line in spell(made))


def test_the_host_time_is_split_into_parts_and_a_rest() -> None:
    """30 us less 2 of guards, 3 of the allocation and 5 of the launch leave 20."""
    made = full_report()
    assert timed(5.0).host.rest == pytest.approx(20.0)
    assert HostSplit(total=5.0).rest is None
    row = next(line for line in spell(made) if line.startswith("table ") and "20.00" in line)
    assert row.split() == ["table", "30.00", "2.000", "3.000", "5.000", "20.00"]
    assert document(made)["summary"]["host_us"]["table"]["rest"] == pytest.approx(20.0)


def test_an_error_of_the_host_split_costs_the_split_at_that_shape_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The column keeps its times, and the document and the text have the shape and the error."""

    def failing(*_: object) -> NoReturn:
        raise RuntimeError("no clock")

    monkeypatch.setattr(timing, "_split_host", failing)
    monkeypatch.setattr(timing, "columns_for", lambda *_: (TORCH_COLUMN,))
    method = Method(launch=Launch.EAGER, l2=L2.WARM)
    setup = timing.MatmulSetup(torch.device("cpu"), "f32", method, 2)
    found = timing.time_columns(Shape(4, 4, 4), setup, None, "")
    made = report(found, result({TORCH_COLUMN: 5.0}))
    assert "no host time of torch at 4x4x4: RuntimeError: no clock" in spell(made)
    column = document(made)["shapes"][0]["columns"][TORCH_COLUMN]
    assert (column["total_us"] > 0, column["host_us"]["total"]) == (True, None)
    assert column["host_reason"] == "RuntimeError: no clock"


def test_a_column_that_fails_while_it_is_timed_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The column has its error as the reason, and the others keep their times."""
    names = (TORCH_COLUMN, "inductor-aten")
    prepare = timing._prepare

    class Failing:
        def time(self) -> float:
            raise RuntimeError("an illegal memory access")

    def with_fault(column: Any, *others: Any) -> Any:
        ready = prepare(column, *others)
        return ready if len(faults) else (faults.append(1), replace(ready, batch=Failing()))[1]

    faults: list[int] = []
    monkeypatch.setattr(timing, "columns_for", lambda *_: names)
    monkeypatch.setattr(timing, "_prepare", with_fault)
    method = Method(launch=Launch.EAGER, l2=L2.WARM)
    setup = timing.MatmulSetup(torch.device("cpu"), "f32", method, rounds=2)
    found = timing.time_columns(Shape(4, 4, 4), setup, None, "")
    assert "an illegal memory access" in found.dropped[TORCH_COLUMN]
    assert list(found.timed) == ["inductor-aten"]


def test_an_unstable_row_of_the_table_is_said() -> None:
    """The text names the shape whose row is flagged, and the document marks it."""
    medians = {TORCH_COLUMN: 5.0, TABLE_COLUMN: 5.0}
    other = result(medians, Shape(64, 64, 64))
    made = report(replace(result(medians), is_unstable=True), other)
    assert any(f"its row is unstable at {SHAPE}:" in line for line in spell(made))
    assert not any("unstable" in line for line in spell(report(other)))
    assert [each["table_unstable"] for each in document(made)["shapes"]] == [True, False]


def test_an_earlier_result_stands_beside_this_one(tmp_path: Path) -> None:
    """Twice the earlier time is clear; the same time is not; other dtypes are named."""
    before = report(result({TORCH_COLUMN: 5.0, TABLE_COLUMN: 5.0}))
    path = write_json(document(before), tmp_path / "before.json")
    against = read_against(path)
    here = report(result({TORCH_COLUMN: 10.0, TABLE_COLUMN: 5.0}), dtype="bf16")
    torch_change, table_change = (
        against.changes(here, name)[SHAPE] for name in (TORCH_COLUMN, TABLE_COLUMN)
    )
    assert (torch_change.ratio, torch_change.is_clear) == (pytest.approx(2.0), True)
    assert (table_change.ratio, table_change.is_clear) == (pytest.approx(1.0), False)
    assert against.differences(here) == ("dtype f16, here bf16",)
    lines = list(spell(here, against))
    assert max(map(len, lines)) <= 80
    assert any("2.000*" in line for line in lines)
    assert document(here, against)["against"]["changes"][0]["ratio"] == pytest.approx(2.0)


def test_the_committed_result_can_be_compared_with(root: Path) -> None:
    """The H200's result, of an earlier form of the document, has all ten shapes."""
    against = read_against(root / "docs/benchmarks/results/bench-mm-h200.json")
    assert {shape for shape, _ in against.times} == set(CLASSIC)


_PLACE = dict.fromkeys(("device", "torch", "triton", "date"), "x")
_METHOD = dict.fromkeys(("dtype", "launch", "l2"), "x")


def earlier(columns: object) -> str:
    """Return an earlier result of one shape with *columns*."""
    shapes = [{"shape": {"m": 1, "k": 2, "n": 3}, "columns": columns}]
    return json.dumps({"benchmark": "mm", "provenance": _PLACE, **_METHOD, "shapes": shapes})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"benchmark": "layers"}', '{"benchmark": "mm"}'),
        earlier([]),
        earlier({"torch": {"device_us": 5.0, "device_interval_us": [5.0, 4.0]}}),
        earlier({"torch": {"device_us": 5.0, "device_interval_us": [0.0, 5.0]}}),
        # JSON reads 1e999 as infinity: a ratio of 0 would end the report, after all measuring.
        earlier({"torch": {"device_us": "1e999", "device_interval_us": [5.0, 5.0]}}),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    """--against names the file and what it should be."""
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    for wrong in (path, tmp_path / "missing.json"):
        with pytest.raises(SettingsError, match="--against"):
            read_against(wrong)
