"""The chart of bars: what stands in it, and the sentence where it cannot be drawn."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.bench.cells import Chart, compose, draw, label_of
from warmup.core.errors import SettingsError

CHART = Chart(
    title="RMSNorm",
    subtitle="Higher is better.",
    x_label="rows x hidden size",
    y_label="GB/s",
    groups=("4096x1024", "4096x4096"),
    series={
        "eager": ((120.0, 123.0, 125.0), (140.0, 150.0, 160.0)),
        "liger": ((230.0, 234.0, 240.0), None),
    },
    reference=("measured peak", 432.0),
    note="a machine, torch 2.13.0",
)


def test_every_word_and_value_stands_in_the_chart(tmp_path: Path) -> None:
    """Title, axes, groups, series, values, the reference, a cross where a value is missing.

    The file is a PNG in a folder that is made, of many bars with long names and of none too.
    """
    pytest.importorskip("matplotlib")
    figure = compose(CHART)
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == ["eager", "liger", "measured peak: 432", "no time"]
    assert [text.get_text() for text in axes.get_xticklabels()] == list(CHART.groups)
    assert (axes.get_xlabel(), axes.get_ylabel()) == (CHART.x_label, CHART.y_label)
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["123", "150", "234"]
    assert {CHART.title, CHART.note} <= {text.get_text() for text in figure.texts}
    groups = tuple(f"a long name of group {number}" for number in range(12))
    series = {f"s{n}": ((n + 0.5, n + 1.0, n + 1.5),) * 12 for n in range(9)}
    for chart in (CHART, replace(CHART, groups=groups, series=series), replace(CHART, series={})):
        draw(chart, tmp_path / "charts" / "one.png")
        assert (tmp_path / "charts" / "one.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib the extra is named; a series has a bar for each group."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"inductor-warmup\[charts\]"):
        draw(CHART, tmp_path / "chart")
    assert list(tmp_path.iterdir()) == []
    for bars in ((), ((1.0, 1.0, 1.0),), (None,) * 3):
        with pytest.raises(ValueError, match="short"):
            replace(CHART, series={"short": bars})


def test_values_have_three_digits() -> None:
    for value, text in ((1234.0, "1234"), (99.96, "100"), (9.994, "9.99"), (0.1234, "0.123")):
        assert label_of(value) == text
