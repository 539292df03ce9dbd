"""`BenchReport`: the cells of `bench mm` and `bench layers`, and what follows from their times.

A cell is one backend in one pass of one layer at one shape: its times, or the reason for none.
`Chart` is a picture of bars in groups, of a comparison too, which `draw` writes as PNG.
"""

from __future__ import annotations

import io
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from warmup.core.errors import SettingsError, warmup_error_in
from warmup.core.files import make_folder, write_output
from warmup.core.roofline import Peaks, gbps_of, share_of_peak, tflops_of
from warmup.core.rows import L2, Launch
from warmup.core.trial import Samples, busy_sentence, geomean, interval_of, ratios_by_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EAGER: Final = "eager"
TABLE: Final = "table"
NEAR_TIE: Final = 0.03  # of a ratio around 1; as in a build
_REASON_LENGTH: Final = 300

Bar = tuple[float, float, float]  # a value between its lower and its upper bound

_NO_BAR: Final = (math.nan, math.nan, math.nan)
# Okabe and Ito's colours, told apart with every common form of colour blindness.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_GROUP_WIDTH: Final = 0.86  # of a group of bars; groups are 1 apart
_MOST_LEVEL: Final = 24  # bars whose values stand level
_LETTERS: Final = 110  # below the axes
_STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 13,
    "text.parse_math": False,
    "axes.axisbelow": True,
    **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top"), False),
    "axes.titlelocation": "left",
    "errorbar.capsize": 3,
    "figure.constrained_layout.use": True,
    "figure.titlesize": 20,
    "figure.titleweight": "bold",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A bar for each series in each group, None where it failed; ``reference`` is a named line."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[Bar | None]]
    reference: tuple[str, float] | None = None
    note: str = ""


def draw(chart: Chart, path: Path) -> None:
    """Write *chart* to *path* as PNG, 1600 pixels wide."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            'install it with `pip install "inductor-warmup[charts]"` or `pip install matplotlib`',
        ) from error
    make_folder(path.parent, "charts")
    content = io.BytesIO()
    with mpl.rc_context(_STYLE):
        compose(chart).savefig(content, format="png", dpi=100)
    write_output(path, content.getvalue(), "chart")


def compose(chart: Chart) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 9))
    figure.suptitle(chart.title, x=0.05, ha="left", wrap=True)
    figure.supxlabel(chart.note, x=0.05, ha="left", wrap=True, fontsize=10.5)
    axes = figure.add_subplot()
    axes.set_title(chart.subtitle, wrap=True)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(axis="y", color="#DDDDDD")
    room = max(_LETTERS // max(len(chart.groups), 3), 8)
    names = [textwrap.fill(group, room) for group in chart.groups]
    axes.set_xticks(range(len(names)), names)
    width = _GROUP_WIDTH / max(len(chart.series), 2)
    is_level = len(chart.series) * len(chart.groups) <= _MOST_LEVEL
    missing: list[float] = []
    for number, (name, series) in enumerate(chart.series.items()):
        shift = width * (number + 0.5 - len(chart.series) / 2)
        places = [group + shift for group in range(len(chart.groups))]
        rows = [bar or _NO_BAR for bar in series]
        apart = [(value - low, high - value) for low, value, high in rows]
        bars = axes.bar(
            places,
            [value for _, value, _ in rows],
            width * 0.92,
            yerr=list(zip(*apart, strict=True)),
            label=textwrap.fill(name, 24),
            color=_COLOURS[number % len(_COLOURS)],
        )
        texts = ["" if bar is None else label_of(bar[1]) for bar in series]
        axes.bar_label(bars, texts, padding=3, fontsize=9, rotation=0 if is_level else 90)
        missing += [x for x, bar in zip(places, series, strict=True) if bar is None]
    if missing:
        at_foot, feet = axes.get_xaxis_transform(), [0.02] * len(missing)
        axes.plot(missing, feet, "x", color="#B04400", label="no time", transform=at_foot)
    if chart.reference:
        name, height = chart.reference
        label = f"{name}: {label_of(height)}"
        axes.axhline(height, color="#222222", linestyle="--", label=label)
    if chart.series:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def label_of(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  three digits


class Pass(StrEnum):
    """The part of a layer that is timed as one call."""

    FORWARD = "forward"
    BOTH = "forward+backward"

    @property
    def short(self) -> str:
        return "fwd+bwd" if self is Pass.BOTH else self.value


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A benchmark as the command line names it.

    Without ``layers`` all built-in layers are timed, without ``shapes`` those of each layer, and
    without ``backends`` all. Without ``table`` a table is built in the folder ``out`` if given: a
    table that exists there is completed.
    """

    benchmark: Literal["mm", "layers"]
    dtype: str
    rounds: int
    layers: Sequence[str] = ()
    shapes: str | None = None
    backends: str | None = None
    table: Path | None = None
    out: Path | None = None
    device: str = "auto"

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def launch(self) -> Launch:
        """How timed calls are launched: as a build's on a GPU."""
        return Launch.EAGER if self.is_cpu else Launch.CUDAGRAPH

    @property
    def l2(self) -> L2:
        """What timed calls find in the L2 cache: as a build's on a GPU."""
        return L2.WARM if self.is_cpu else L2.COLD

    @property
    def steps(self) -> tuple[Pass, ...]:
        return (Pass.FORWARD,) if self.benchmark == "mm" else tuple(Pass)


Place = tuple[str, str, Pass]  # layer, shape, pass: the cells of a place are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One layer at one shape in one pass on one backend; *shape* has the form ``4096x1024``.

    ``error`` is the largest relative L2 distance of its outputs and gradients from the reference,
    None where they were not compared; ``is_wrong`` where they are beyond the tolerance. ``moved``
    is the least number of bytes of the pass, None where its operands do not exist, and ``flops``
    its operations, None where the layer does not say.
    """

    layer: str
    shape: str
    step: Pass
    backend: str
    moved: int | None = None
    flops: int | None = None
    samples: Samples | None = None
    error: float | None = None
    reason: str = ""
    is_wrong: bool = False

    @property
    def place(self) -> Place:
        return self.layer, self.shape, self.step

    @property
    def gbps(self) -> float | None:
        return gbps_of(self.moved, self.samples.median) if self.samples and self.moved else None

    @property
    def tflops(self) -> float | None:
        return tflops_of(self.flops, self.samples.median) if self.samples and self.flops else None


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """A finished benchmark, ``mm`` or ``layers``.

    ``missing`` says why backends could not be used at all, ``versions`` are those of the libraries
    in use, ``titles`` the names of layers and of their sizes, ``table`` is the digest of the table
    that was served, and ``table_hits`` says how many decisions it answered by layer.
    """

    benchmark: str
    provenance: Mapping[str, str | None]
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    backends: tuple[str, ...]
    missing: Mapping[str, str]
    versions: Mapping[str, str]
    tolerance: float
    titles: Mapping[str, tuple[str, str]]
    peaks: Peaks | None
    cells: tuple[Cell, ...]
    table: str | None = None
    table_hits: Mapping[str, int] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.layer for cell in self.cells))

    @property
    def steps(self) -> tuple[Pass, ...]:
        return tuple(dict.fromkeys(cell.step for cell in self.cells))

    @property
    def is_arithmetic(self) -> bool:
        """Whether rates are TFLOP/s, as of products; those of layers are GB/s."""
        return self.benchmark == "mm"

    @property
    def unit(self) -> str:
        return "TFLOP/s" if self.is_arithmetic else "GB/s"

    @property
    def is_right(self) -> bool:
        """Whether no result was wrong, and a backend beside eager, or eager alone, was compared."""
        others = {name for name in self.backends if name != EAGER} or {EAGER}
        compared = {cell.backend for cell in self.cells if cell.error is not None}
        return bool(others & compared) and not any(cell.is_wrong for cell in self.cells)

    @cached_property
    def bases(self) -> Mapping[Place, Samples]:
        """Eager's times by place, where they do not scatter too far for a ratio."""
        return {
            cell.place: cell.samples
            for cell in self.cells
            if cell.backend == EAGER and cell.samples is not None
            if busy_sentence(EAGER, cell.samples) is None
        }

    def rate(self, cell: Cell) -> float | None:
        return cell.tflops if self.is_arithmetic else cell.gbps

    def share(self, cell: Cell) -> float | None:
        """Return the share of the measured peak that *cell* reaches; None without times or peaks.

        With a warm L2 bytes do not count, since they may come from the cache. Operations count for
        products alone: those of a layer do not run where the peak was measured.
        """
        flops = cell.flops if self.is_arithmetic else None
        moved = 0 if self.l2 is L2.WARM else cell.moved or 0
        if self.peaks is None or cell.samples is None or not (flops or moved):
            return None
        return share_of_peak(self.peaks, self.dtype, flops, moved, cell.samples.median)

    def speedup(self, cell: Cell) -> float | None:
        """Return eager's median time over that of *cell*; None where either cannot be believed."""
        base = self.bases.get(cell.place)
        return None if base is None or cell.samples is None else base.median / cell.samples.median

    def mean_speedup(self, backend: str, step: Pass, layer: str | None) -> dict[str, Any] | None:
        """Return the mean speed-up of *backend* in *step*, with the interval of rounds' means."""
        pairs = [
            (self.bases[cell.place], cell.samples)
            for cell in self.cells
            if (cell.backend, cell.step) == (backend, step) and layer in (None, cell.layer)
            if cell.samples is not None and cell.place in self.bases
        ]
        if not pairs:
            return None
        by_round = zip(*(ratios_by_round(*pair) for pair in pairs), strict=True)
        interval = interval_of([geomean(ratios) for ratios in by_round])
        mean = geomean([base.median / own.median for base, own in pairs])
        return {"geomean": mean, "interval": list(interval), "shapes": len(pairs)}

    def table_ratio(self, place: Place) -> dict[str, Any] | None:
        """Return the table's time at *place* over that of the fastest other backend, or None.

        The interval is that of the median of the rounds' ratios. The verdict is ``within noise``
        where it contains 1 or the ratio is within `NEAR_TIE`, ``too busy`` where the times of the
        other backend scatter too far, else ``faster`` or ``slower``.
        """
        timed = {c.backend: c.samples for c in self.cells if c.place == place and c.samples}
        own = timed.pop(TABLE, None)
        best = min(timed, key=lambda name: timed[name].median, default=None)
        if own is None or best is None:
            return None
        other = timed[best]
        if busy_sentence(best, other) is not None:
            return {"best": best, "ratio": None, "interval": None, "verdict": "too busy"}
        low, high = interval_of(ratios_by_round(own, other))
        ratio = own.median / other.median
        is_noise = low <= 1 <= high or abs(ratio - 1) <= NEAR_TIE
        verdict = "within noise" if is_noise else "slower" if ratio > 1 else "faster"
        return {"best": best, "ratio": ratio, "interval": [low, high], "verdict": verdict}


def document(report: BenchReport) -> dict[str, Any]:
    """Return all of *report* as JSON values, its rates and speed-ups too; times in microseconds."""
    return {
        **{each.name: getattr(report, each.name) for each in fields(report)},
        "peaks": None if report.peaks is None else asdict(report.peaks),
        "cells": [_cell(report, cell) for cell in report.cells],
        "table_over_best": [
            {"layer": place[0], "shape": place[1], "pass": place[2].value, **ratio}
            for place in dict.fromkeys(cell.place for cell in report.cells)
            if (ratio := report.table_ratio(place)) is not None
        ],
        "speedup_over_eager": [
            {"layer": layer, "pass": step.value, "backend": backend, **mean}
            for layer in (*report.layers, None)
            for step in report.steps
            for backend in report.backends
            if (mean := report.mean_speedup(backend, step, layer)) is not None
        ],
    }


def _cell(report: BenchReport, cell: Cell) -> dict[str, Any]:
    samples, own = cell.samples, asdict(cell)
    del own["samples"], own["step"]
    return {
        **own,
        "pass": cell.step.value,
        "time_us": None if samples is None else samples.median,
        "interval_us": None if samples is None else list(samples.interval),
        "rounds_us": None if samples is None else list(samples.times_us),
        "least_bytes": own.pop("moved"),
        "tflops": cell.tflops,
        "gbps": cell.gbps,
        "share_of_peak": report.share(cell),
        "speedup_over_eager": report.speedup(cell),
        "relative_l2_error": own.pop("error"),
        "reason": cell.reason or None,
    }


def chart_of(report: BenchReport, layer: str) -> Chart:
    """Return the chart of *layer*: the rate of each backend by shape and pass."""
    own = [cell for cell in report.cells if cell.layer == layer]
    cells = {(f"{cell.shape} {cell.step.short}", cell.backend): cell for cell in own}
    groups = tuple(dict.fromkeys(group for group, _ in cells))
    rows = {
        name: [_bar(report, cells.get((group, name))) for group in groups]
        for name in report.backends
    }
    (title, sizes), peaks, where = report.titles[layer], report.peaks, report.provenance
    peak = peaks and (peaks.tflops.get(report.dtype) if report.is_arithmetic else peaks.gbps)
    dropped = ", ".join(name for name, bars in rows.items() if not any(bars))
    return Chart(
        title=f"{title}, {report.dtype}",
        subtitle=f"Higher is better. Medians of {report.rounds} rounds with 95 % intervals, "
        f"{report.launch}, {report.l2} L2.",
        x_label=sizes,
        y_label=report.unit,
        groups=groups,
        series={
            f"{name} {report.versions.get(name, '')}".rstrip(): bars
            for name, bars in rows.items()
            if any(bars)
        },
        reference=("measured peak", peak) if peak else None,
        note=f"{where['device']}, torch {where['torch']}, triton {where['triton'] or 'none'}, "
        f"warmup {where['warmup']}, {(where['date'] or '')[:10]}"
        + (f"; no times of {dropped}" if dropped else ""),
    )


def _bar(report: BenchReport, cell: Cell | None) -> Bar | None:
    if cell is None or cell.samples is None or (rate := report.rate(cell)) is None:
        return None
    (low, high), median = cell.samples.interval, cell.samples.median
    return rate * median / high, rate, rate * median / low


def reason_of(error: BaseException) -> str:
    """Return the text of *error*, or of the warmup error that torch wrapped, in one short line."""
    own = warmup_error_in(error)
    text = f"{type(error).__name__}: {error}" if own is None else str(own)
    return " ".join(text.split())[:_REASON_LENGTH]


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write *content* to *path*; its folder is created where it is missing."""
    make_folder(path.parent, "--out")
    write_output(path, json.dumps(content, indent=2, sort_keys=True) + "\n", "--out")
