"""Charts: what is drawn can be read from the picture alone, and is the same each time."""

from __future__ import annotations

import itertools
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw
from warmup.core.errors import SettingsError

_CHART = Chart(
    title="RMSNorm forward",
    subtitle="higher is better",
    x_label="rows x hidden size",
    y_label="memory bandwidth (GB/s)",
    groups=("4096x1024", "4096x4096"),
    series=(
        Series(name="eager", values=(1234.0, 1500.0), low=(1200.0, 1400.0), high=(1250.0, 1600.0)),
        Series(name="liger", values=(2345.0, None), low=(2300.0, None), high=(2400.0, None)),
    ),
    reference=("measured peak", 4321.0),
    note="a machine, torch 2.13.0, 2026-01-02",
)


def words_of(svg: Path) -> list[str]:
    """Return the texts of an SVG file, in the order in which they are painted."""
    root = ET.fromstring(svg.read_text(encoding="utf-8"))  # noqa: S314  our own file
    return [
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def drawn(chart: Chart, folder: Path) -> list[str]:
    pytest.importorskip("matplotlib")
    return words_of(draw(chart, folder / "chart")[1])


def test_both_files_are_named_by_the_path(tmp_path: Path) -> None:
    """The path gains both suffixes, loses one of these two, and keeps any other dot."""
    pytest.importorskip("matplotlib")
    assert draw(_CHART, tmp_path / "new" / "torch-2.13") == (
        tmp_path / "new" / "torch-2.13.png",
        tmp_path / "new" / "torch-2.13.svg",
    )
    assert draw(_CHART, tmp_path / "a.png") == (tmp_path / "a.png", tmp_path / "a.svg")
    assert all((tmp_path / name).stat().st_size for name in ("a.png", "a.svg"))


def test_a_png_is_1600_pixels_wide(tmp_path: Path) -> None:
    """The width is in the header of the PNG."""
    pytest.importorskip("matplotlib")
    png, _ = draw(_CHART, tmp_path / "a")
    assert int.from_bytes(png.read_bytes()[16:20], "big") == 1600


def test_everything_that_names_something_is_text(tmp_path: Path) -> None:
    """Title, subtitle, axes, groups, series, reference and note are text in the SVG."""
    words = " ".join(drawn(_CHART, tmp_path))
    named = [
        *(_CHART.title, _CHART.subtitle, _CHART.x_label, _CHART.y_label, _CHART.note),
        *(*_CHART.groups, "eager", "liger", "measured peak"),
    ]
    assert [name for name in named if name not in words] == []


def test_values_are_written_and_a_missing_one_says_that_it_failed(tmp_path: Path) -> None:
    """Each bar has its value, the reference too; where a value is missing stands `failed`."""
    words = " ".join(drawn(_CHART, tmp_path))
    assert [value for value in ("1234", "1500", "2345", "4321") if value not in words] == []
    assert words.count("failed") == 1


def test_lines_have_a_gap_where_a_value_is_missing(tmp_path: Path) -> None:
    """The legend says what the gap is, and no value is written for it."""
    lines = replace(_CHART, kind="lines", reference=None)
    assert "liger (gap: not measured)" in drawn(replace(lines, gap="not measured"), tmp_path)
    words = drawn(lines, tmp_path)
    assert "liger (gap: failed)" in words
    assert {"1234", "1500", "2345"} <= set(words)
    assert "failed" not in words


def test_the_same_chart_is_the_same_svg(tmp_path: Path) -> None:
    """Two drawings of one chart are equal byte for byte: no date, no random names."""
    pytest.importorskip("matplotlib")
    first, second = (draw(_CHART, tmp_path / name)[1].read_bytes() for name in ("a", "b"))
    assert first == second


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", ["bars", "lines"])
@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 2), (10, 6), (12, 9)])
def test_any_size_is_drawn(tmp_path: Path, size: tuple[int, int], kind: str, log: bool) -> None:
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
    assert "RMSNorm forward" in drawn(chart, tmp_path)


def test_no_labels_overlap_in_a_crowded_chart() -> None:
    """Ten groups of six bars have every value, and no two texts share a pixel."""
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from warmup.bench.charts.drawing import compose
    from warmup.bench.charts.lettering import Page

    values = tuple(1000.0 + 7 * n for n in range(10))
    series = tuple(
        Series(name=f"variant {n}", values=tuple(value + 11 * n for value in values))
        for n in range(6)
    )
    groups = tuple(f"{rows}x16384" for rows in range(4096, 4106))
    figure = Figure(figsize=(16, 9), dpi=100)
    FigureCanvasAgg(figure)
    compose(replace(_CHART, groups=groups, series=series, title="A title " * 20), Page(figure))
    figure.draw_without_rendering()
    ticks = set(figure.axes[0].get_yticklabels())  # those beyond the axis are there, unpainted
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text not in ticks]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    assert len([name for name, _ in boxes if name.isdigit() and int(name) >= 1000]) >= 60
    overlapping = [
        (a, b)
        for (a, box), (b, other) in itertools.combinations(boxes, 2)
        if box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9))
    ]
    assert overlapping == []


def test_a_series_must_have_a_value_for_each_group(tmp_path: Path) -> None:
    """A value too few is an error, not a shifted chart."""
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="argument 2 is longer"):
        draw(replace(_CHART, series=(Series(name="eager", values=(1.0,)),)), tmp_path / "a")


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
    with pytest.raises(SettingsError, match="cannot write the chart"):
        draw(_CHART, tmp_path / "file" / "a")


def test_importing_charts_imports_no_matplotlib() -> None:
    """Whoever names a chart does not pay for drawing it."""
    code = "import sys, warmup.bench.charts.chart; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
