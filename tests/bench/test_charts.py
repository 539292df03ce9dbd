"""Charts: what is drawn can be read from the picture alone, and is the same each time."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw, draw_all, svg_of
from warmup.bench.charts.starts import start_chart
from warmup.core.errors import SettingsError

pytestmark = pytest.mark.long

_CHART = Chart(
    title="RMSNorm forward",
    subtitle="higher is better",
    x_label="rows x hidden size",
    y_label="memory bandwidth, GB/s",
    groups=("4096x1024", "4096x4096"),
    series=(
        Series(name="eager", values=(123.0, 150.0), low=(120.0, 140.0), high=(125.0, 160.0)),
        Series(name="liger", values=(234.0, None), low=(230.0, None), high=(240.0, None)),
    ),
    reference=("measured peak", 432.0),
    note="a machine, torch 2.13.0, 2026-01-02",
)
_LONG = "a_name_of_thirty_letters_or_so"


def sized(series: int, groups: int, *, name: str = "variant", spread: float = 0.0) -> Chart:
    """Return a chart of that size; *spread* is half of an error bar, over its value."""
    rows = [[500.0 + 11 * n + 7 * g for g in range(groups)] for n in range(series)]
    return replace(
        _CHART,
        groups=tuple(f"{rows}x16384" for rows in range(4096, 4096 + groups)),
        series=tuple(
            Series(
                name=f"{name} {n}",
                values=tuple(row),
                low=tuple(value * (1 - spread) for value in row) if spread else (),
                high=tuple(value * (1 + spread) for value in row) if spread else (),
            )
            for n, row in enumerate(rows)
        ),
    )


WITH_BOUNDS = {
    "small": _CHART,
    "wide error bars": sized(5, 4, spread=0.2),
    "ten groups of five": sized(5, 10, spread=0.01),
    "single group": sized(2, 1, spread=0.1),
    "negative values": replace(
        sized(1, 2),
        reference=None,
        series=(Series(name="slower", values=(-3.0, 1.0), low=(-4.0, -1.0), high=(-2.0, 2.0)),),
    ),
    "log scale": replace(
        sized(1, 3),
        log=True,
        series=(
            Series(name="n", values=(1.0, 30.0, 900.0), low=(0.9, 20, 800), high=(2, 50, 910)),
        ),
    ),
}
OTHERS = {
    "ten groups of six": sized(6, 10),
    "long names": replace(
        sized(3, 5, name=_LONG * 3),
        groups=tuple(f"{_LONG * 2}{n}" for n in range(5)),
        subtitle="a subtitle " * 30,
        note="a note " * 60,
    ),
    "stacks": replace(sized(4, 5), kind="stacked", reference=None),
    "a stack that ends with nothing": replace(
        _CHART,
        kind="stacked",
        reference=None,
        series=tuple(Series(name=f"{n}", values=(n, 2 * n)) for n in (3.0, 0.0)),
    ),
    "lines": replace(sized(6, 8), kind="lines"),
    "steep lines": replace(
        sized(1, 4),
        kind="lines",
        log=True,
        series=tuple(Series(name=f"{n}", values=(n, 9.0, 90.0, 400.0 * n)) for n in (1.0, 1.1)),
    ),
    "ranges": replace(
        _CHART,
        kind="ranges",
        y_label="size",
        dot="size compiled",
        groups=("a title", f"2..100 {_LONG}", "101..256"),
        series=(
            Series(
                name="ends", values=(None, 16, None), low=(None, 2, None), high=(None, 100, None)
            ),
            Series(
                name="goes on",
                values=(None, None, 256),
                low=(None, None, 101),
                high=(None, None, 256),
            ),
        ),
    ),
}


def words_of(svg: str) -> list[str]:
    """Return the texts of an SVG document, in the order in which they are painted."""
    root = ET.fromstring(svg)  # noqa: S314  our own file
    return [
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def drawn(chart: Chart) -> list[str]:
    pytest.importorskip("matplotlib")
    return words_of(svg_of(chart))


def test_both_files_are_named_by_the_path(tmp_path: Path) -> None:
    """The path gains both suffixes, loses one of these two, and keeps any other dot."""
    pytest.importorskip("matplotlib")
    assert draw(_CHART, tmp_path / "new" / "torch-2.13") == (
        tmp_path / "new" / "torch-2.13.png",
        tmp_path / "new" / "torch-2.13.svg",
    )
    assert draw(_CHART, tmp_path / "a.png") == (tmp_path / "a.png", tmp_path / "a.svg")
    assert all((tmp_path / name).stat().st_size for name in ("a.png", "a.svg"))


def test_several_charts_are_named_by_stem_and_name(tmp_path: Path) -> None:
    """Each is STEM-NAME, twice, in the order given."""
    pytest.importorskip("matplotlib")
    paths = draw_all({"time": _CHART, "rate": _CHART}, tmp_path, "bench")
    names = ["bench-time.png", "bench-time.svg", "bench-rate.png", "bench-rate.svg"]
    assert paths == tuple(tmp_path / name for name in names)
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_a_png_is_1600_pixels_wide(tmp_path: Path) -> None:
    """The width is in the header of the PNG."""
    pytest.importorskip("matplotlib")
    png, _ = draw(_CHART, tmp_path / "a")
    assert int.from_bytes(png.read_bytes()[16:20], "big") == 1600


def test_everything_that_names_something_is_text() -> None:
    """Title, subtitle, axes, groups, series, reference and note are text in the SVG."""
    words = " ".join(drawn(_CHART))
    named = [
        *(_CHART.title, _CHART.subtitle, _CHART.x_label, _CHART.y_label, _CHART.note),
        *(*_CHART.groups, "eager", "liger", "measured peak"),
    ]
    assert [name for name in named if name not in words] == []


def test_values_are_written_and_a_missing_one_has_a_cross() -> None:
    """Each bar has its value, the reference too; the legend says what a cross is."""
    words = " ".join(drawn(_CHART))
    assert [value for value in ("123", "150", "234", "432") if value not in words] == []
    assert words.count("failed") == 1


def test_a_chart_without_a_missing_value_has_no_cross() -> None:
    """Where nothing failed the legend does not explain crosses."""
    assert "failed" not in drawn(replace(_CHART, series=_CHART.series[:1]))


def test_lines_have_a_gap_where_a_value_is_missing() -> None:
    """The legend says what the gap is, and no value is written for it."""
    lines = replace(_CHART, kind="lines", reference=None)
    assert "liger (gap: not measured)" in " ".join(drawn(replace(lines, gap="not measured")))
    words = " ".join(drawn(lines))
    assert "liger (gap: failed)" in words
    assert [value for value in ("123", "150", "234") if value not in words] == []
    assert words.count("failed") == 1


@pytest.mark.parametrize("kind", ["bars", "stacked", "lines"])
def test_the_same_chart_is_the_same_svg(kind: str) -> None:
    """Two drawings are equal: no date, no random names, and nothing of the user's own style."""
    mpl = pytest.importorskip("matplotlib")
    chart = replace(_CHART, kind=kind)
    first = svg_of(chart)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert svg_of(chart) == first


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", ["bars", "stacked", "lines"])
@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 2), (10, 6), (12, 9)])
def test_any_size_is_drawn(size: tuple[int, int], kind: str, log: bool) -> None:
    """Charts from empty to crowded are drawn, with values missing, on either scale."""
    groups, series = size
    chart = replace(
        _CHART,
        kind=kind,
        log=log,
        groups=tuple(f"{2**place}x16384" for place in range(groups)),
        series=tuple(
            Series(
                name=f"variant {n}",
                values=tuple(None if (n, g) == (0, 0) else 10.0**n + g for g in range(groups)),
            )
            for n in range(series)
        ),
    )
    assert "RMSNorm forward" in drawn(chart)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The chart that is asked for as a figure, under a long title."""
    mpl = pytest.importorskip("matplotlib")
    from warmup.bench.charts.drawing import STYLE, compose

    with mpl.rc_context(fname=STYLE):
        figure = compose(replace(request.param, title="A title " * 20))
        figure.draw_without_rendering()
        yield figure


def charts(*groups: dict[str, Chart]) -> pytest.MarkDecorator:
    known = {name: chart for group in groups for name, chart in group.items()}
    return pytest.mark.parametrize("figure", known.values(), ids=known, indirect=True)


def texts_of(figure: Any) -> list[Any]:
    """Return every text of *figure* that is painted."""
    from matplotlib.text import Text

    (axes,) = figure.axes
    unpainted = set()  # numbers beyond the ends of an axis
    for axis, (begin, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if not min(begin, end) <= tick.get_loc() <= max(begin, end):
                unpainted |= {tick.label1, tick.label2}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [text for text in texts if text not in unpainted]


def overlap(a: Any, b: Any) -> bool:
    """Return whether two texts share a pixel; names of groups may be turned by 30 degrees."""
    boxes = [text.get_window_extent() for text in (a, b)]
    if a.get_rotation() == b.get_rotation() == 30:
        a.set_rotation(0)
        thickness = a.get_window_extent().height
        a.set_rotation(30)
        return bool(abs(boxes[0].x1 - boxes[1].x1) * 0.5 < thickness)
    return bool(boxes[0].shrunk(0.9, 0.9).overlaps(boxes[1].shrunk(0.9, 0.9)))


def beyond(texts: list[Any], frame: Any) -> list[str]:
    """Return those of *texts* that are not wholly within *frame*."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        name
        for name, box in boxes
        if not (frame.x0 <= box.x0 and box.x1 <= frame.x1)
        or not (frame.y0 <= box.y0 and box.y1 <= frame.y1)
    ]


@charts(WITH_BOUNDS, OTHERS)
def test_no_texts_overlap(figure: Any) -> None:
    """No two texts of a chart share a pixel."""
    pairs = itertools.combinations(texts_of(figure), 2)
    assert [(a.get_text(), b.get_text()) for a, b in pairs if overlap(a, b)] == []


@charts(WITH_BOUNDS, OTHERS)
def test_no_text_is_cut_off(figure: Any) -> None:
    """Every text is within the picture, and every value within the axes."""
    (axes,) = figure.axes
    texts = texts_of(figure)
    assert beyond(texts, figure.bbox) == []
    assert beyond([text for text in texts if text in axes.texts], axes.bbox) == []


@charts({"ten groups of six": OTHERS["ten groups of six"]})
def test_every_bar_of_a_crowded_chart_has_its_value(figure: Any) -> None:
    """Ten groups of six bars have sixty values."""
    assert len([text for text in figure.axes[0].texts if text.get_text().isdigit()]) == 60


@charts({name: chart for name, chart in OTHERS.items() if chart.kind == "lines"})
def test_a_value_at_a_line_stands_at_its_own_point(figure: Any) -> None:
    """No point is nearer to a value than its own; some values of each chart are there."""
    from warmup.bench.charts.labels import label_of

    (axes,) = figure.axes
    points = [
        point for line in axes.lines if line.get_marker() != "None" for point in line.get_xydata()
    ]
    pixels = axes.transData.transform(points)
    assert axes.texts
    for text in axes.texts:
        box = text.get_window_extent()
        middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
        nearest = min(math.dist(pixel, middle) for pixel in pixels)
        own = [
            axes.transData.transform(point)
            for point in points
            if label_of(point[1]) == text.get_text()
        ]
        assert nearest == min(math.dist(pixel, middle) for pixel in own)


@charts(WITH_BOUNDS)
def test_a_value_stands_on_its_bar_and_on_no_error_bar(figure: Any) -> None:
    """Each value is over its own bar, at its end, and covers no error bar of any bar."""
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.transforms import Bbox

    (axes,) = figure.axes
    labels = [label for label in axes.texts if label.get_text()]
    bars = [
        patch.get_window_extent()
        for drawn in axes.containers
        if isinstance(drawn, BarContainer)
        for patch in drawn.patches
        if patch.get_height() == patch.get_height()  # not a missing one
    ]
    bounds = [
        Bbox(axes.transData.transform(segment)).padded(3)
        for drawn in axes.containers
        if isinstance(drawn, ErrorbarContainer)
        for segment in drawn.lines[2][0].get_segments()
        if len(segment)
    ]
    assert len(labels) == len(bars) <= len(bounds)
    for label, bar in zip(labels, bars, strict=True):
        box = label.get_window_extent()
        assert bar.x0 <= box.x0 < box.x1 <= bar.x1
        assert min(abs(box.y0 - bar.y1), abs(box.y1 - bar.y0)) < 8
        assert not any(box.overlaps(bound) for bound in bounds)


@pytest.mark.parametrize(
    ("unit", "value", "shown", "number"),
    [
        ("TFLOP/s", 5e-5, "MFLOP/s", "50.0"),
        ("TFLOP/s", 569.0, "TFLOP/s", "569"),
        ("GB/s", 4200.0, "TB/s", "4.20"),
        ("us", 0.25, "ns", "250"),
        ("us", 94_100.0, "ms", "94.1"),
        ("s", 643.0, "s", "643"),
        ("s", 7200.0, "min", "120"),
        ("MiB", 1281.0, "GiB", "1.25"),
    ],
)
def test_the_unit_keeps_numbers_between_1_and_999(
    unit: str, value: float, shown: str, number: str
) -> None:
    """The largest value decides for the axis, the values, their bounds and the reference."""
    pytest.importorskip("matplotlib")
    series = Series(name="a", values=(value,), low=(value * 0.9,), high=(value * 1.05,))
    label = f"rate, {unit}"
    chart = replace(
        _CHART, y_label=label, groups=("g",), series=(series,), reference=("peak", value)
    )
    words = drawn(chart)
    assert f"rate, {shown}" in words
    assert number in words
    assert f"peak: {number}" in words
    on_axis = [float(word) for word in words if word[0].isdigit() and word[-1].isdigit()]
    assert 1 <= max(on_axis) <= 999


def test_values_of_no_known_unit_stay_as_they_are() -> None:
    """A percentage of a hundred thousand is drawn as one."""
    series = Series(name="a", values=(1e5, 10.0))
    words = drawn(replace(_CHART, y_label="% faster", series=(series,), reference=None))
    assert {"100000", "10.0", "% faster"} <= set(words)


def test_a_log_scale_is_taken_where_a_linear_one_hides_values() -> None:
    """From 20 times the smallest value on, and only where the chart allows it."""
    near, far = ((Series(name="a", values=(1.0, most)),) for most in (19.0, 21.0))
    label = "memory bandwidth, GB/s (log scale)"
    assert label in drawn(replace(_CHART, series=far, reference=None, log=True))
    assert label not in drawn(replace(_CHART, series=near, reference=None, log=True))
    assert label not in drawn(replace(_CHART, series=far, reference=None))


def test_stacks_have_their_sum_and_the_values_of_their_parts() -> None:
    """Three parts are four numbers; a group without any part has a cross."""
    parts = [Series(name=name, values=(value, None)) for name, value in (("a", 20.0), ("b", 31.0))]
    parts.append(Series(name="c", values=(40.0, None)))
    words = drawn(replace(_CHART, kind="stacked", series=tuple(parts), reference=None))
    assert {"20.0", "31.0", "40.0", "91.0", "failed"} <= set(words)


@pytest.mark.parametrize(
    "series",
    [
        Series(name="eager", values=(1.0,)),
        Series(name="eager", values=(1.0, 2.0), low=(1.0,), high=(1.0,)),
        Series(name="eager", values=(1.0, 2.0), low=(1.0, 2.0)),
    ],
)
def test_a_series_must_have_a_value_for_each_group(series: Series) -> None:
    """A value or a bound too few is an error, not a shifted chart."""
    with pytest.raises(ValueError, match="eager: not one value for each of the 2 groups"):
        replace(_CHART, series=(series,))


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra; nothing is written."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"inductor-warmup\[charts\]"):
        draw(_CHART, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_a_settings_error(tmp_path: Path) -> None:
    """A file where the folder should be is named, with what to do."""
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"charts .* cannot be made: File exists"):
        draw(_CHART, tmp_path / "file" / "a")


def test_importing_charts_imports_no_matplotlib() -> None:
    """Whoever names a chart does not pay for drawing it."""
    code = "import sys, warmup.bench.charts.chart; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_phases_without_height_are_drawn_as_other() -> None:
    """Each bar keeps its height; a phase stands alone where it is 1 % of the highest bar."""
    bars = {
        "first": {"import": 90.0, "aot": 0.5, "caches": 0.4, "other": 9.1},
        "second": {"aot": 2.0, "caches": 0.1, "other": 0.0},
        "failed": None,
    }
    chart = start_chart("Start", "", bars, x_label="variant", note="")
    assert [(series.name, series.values) for series in chart.series] == [
        ("import", (90.0, 0.0, None)),
        ("AOT", (0.5, 2.0, None)),
        ("other, and below 1 %", (9.5, 0.1, None)),
    ]
