"""."""

from __future__ import annotations

from pathlib import Path

from warmup.bench.charts.chart import Chart
from warmup.core.errors import SettingsError


def draw(chart: Chart, path: Path) -> tuple[Path, Path]:
    """Write *chart* to *path* with the suffixes .png and .svg, and return both paths.

    A suffix of these two that *path* has already is replaced; any other is part of the name. The
    same chart gives the same SVG again. The folder is made where there is none.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
        ValueError: a series has not one value for each group.
    """
    check_matplotlib()
    from warmup.bench.charts.drawing import paint

    stem = path.with_suffix("") if path.suffix in {".png", ".svg"} else path
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        paint(chart, png, svg)
    except OSError as error:
        raise SettingsError(
            f"{png}: cannot write the chart: {error.strerror}", "name a writable folder"
        ) from error
    return png, svg


def check_matplotlib() -> None:
    """Return when charts can be drawn here.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401  asked for before what needs it is imported
    except ImportError as error:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            'install it with `pip install "inductor-warmup[charts]"` or `pip install matplotlib`',
        ) from error
