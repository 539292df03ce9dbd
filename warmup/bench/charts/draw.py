"""`draw`: a chart as PNG and SVG files. matplotlib is imported when a chart is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from warmup.bench.charts.chart import Chart
from warmup.core.errors import SettingsError
from warmup.core.files import make_folder, write_output


def draw(chart: Chart, path: Path) -> tuple[Path, Path]:
    """Write *chart* to *path* with the suffixes .png and .svg, and return both paths.

    A suffix .png or .svg of *path* is replaced; any other suffix is part of the name. The same
    chart always gives the same SVG. A missing folder is created.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    check_matplotlib()
    from warmup.bench.charts.drawing import paint

    stem = path.with_suffix("") if path.suffix in {".png", ".svg"} else path
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    make_folder(path.parent, "charts")
    for file, content in zip((png, svg), paint(chart, "png", "svg"), strict=True):
        write_output(file, content, "chart")
    return png, svg


def draw_all(charts: Mapping[str, Chart], folder: Path, stem: str) -> tuple[Path, ...]:
    """Draw each of *charts* as ``STEM-NAME`` in *folder*, and return the paths of all files.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    return tuple(
        path for name, chart in charts.items() for path in draw(chart, folder / f"{stem}-{name}")
    )


def svg_of(chart: Chart) -> str:
    """Return *chart* as an SVG document; the same chart always gives the same text.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    check_matplotlib()
    from warmup.bench.charts.drawing import paint

    (content,) = paint(chart, "svg")
    return content.decode()


def check_matplotlib() -> None:
    """Check that matplotlib can be imported.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401  only whether the import succeeds matters
    except ImportError as error:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            'install it with `pip install "inductor-warmup[charts]"` or `pip install matplotlib`',
        ) from error
