"""The benchmark page: its template, and what it says of results that say something else."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs of the page, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/benchmarks"))
    names = ("template", "render", "compared", "timings")
    return {name: importlib.import_module(name) for name in names}


@pytest.fixture
def page(modules: Any, tmp_path: Path) -> Callable[[str], str]:
    """Fill a template from the results in a folder, empty at first."""
    return lambda text: modules["template"].render(text, tmp_path, modules["render"].FUNCTIONS)


def cell(name: str, times_us: Sequence[float]) -> dict[str, Any]:
    return {
        "name": name,
        "agrees": True,
        "error": 0.0,
        "limit": 0.02,
        "device_times_us": list(times_us),
        "wall_times_us": list(times_us),
    }


def write(path: Path, model: str, buckets: Sequence[tuple[Mapping[str, int], Any]]) -> None:
    runtime = {"device": {"name": "X"}, "torch": "0", "triton": "0"}
    origin = {"model": model, "runtime": runtime, "created": "2026-01-01", "dtype": "bf16"}
    origin |= {"rounds": ROUNDS, "launch": "cudagraph", "digest": "0" * 64, "warmup": "0"}
    found = [{"bucket": sizes, "variants": variants} for sizes, variants in buckets]
    path.write_text(json.dumps({"origin": origin, "buckets": found}), encoding="utf-8")


def product(m: int, **us: float) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """One bucket of a product, with the same time of a variant in every round."""
    times = {name.replace("_", "-"): time for name, time in us.items()}
    return {"n": 8, "k": 4, "m": m}, [cell(name, [us] * ROUNDS) for name, us in times.items()]


def test_a_product_is_listed_from_two_percent_behind_the_fastest(page: Any, tmp_path: Path) -> None:
    """One that is 3 % behind eager is listed, though ahead of max-autotune; 1 % behind is not."""
    buckets = [
        product(16, eager=10.0, default=11.0, max_autotune=12.0, table=10.3),
        product(64, eager=12.0, default=11.0, max_autotune=10.0, table=10.1),
    ]
    write(tmp_path / "one.json", "products.py:SiluMul", buckets)
    text = (
        "<!-- results: one absent -->\n| {best_products:all} |\n\n"
        "<!-- rows: slower_products -->\n- {model} {n} x {k}, M={m}: {text}\n"
    )
    goal, _, product_line = page(text).splitlines()
    assert goal == "| 1 of 2 | missed |"
    assert product_line == (
        "- SiluMul 8 x 4, M=16: 10.3 us against 10 of `eager`, 0.97x (0.97 to 0.97), 3.0% slower, "
        "beyond noise"
    )


def test_the_mean_waits_for_all_classes_with_an_epilogue(page: Any, tmp_path: Path) -> None:
    """The goal is judged over three classes: it is reached with all, and open without one."""
    for model in ("BiasGelu", "SiluMul", "Residual"):
        bucket = product(16, eager=12.0, default=12.0, max_autotune=10.5, table=10.0)
        write(tmp_path / f"{model}.json", f"products.py:{model}", [bucket])
    text = "<!-- results: {} -->\n| {{mean_with_epilogue:at least 1.03}} |\n"
    assert page(text.format("BiasGelu SiluMul Residual")) == "| 1.05 | reached |\n"
    assert page(text.format("BiasGelu SiluMul")) == "| not measured |  |\n"


def test_padding_is_slower_only_where_the_intervals_are_apart(page: Any, tmp_path: Path) -> None:
    """A larger median within max-autotune's interval is noise; one beyond it is told."""
    shaking = [10.0, 12.0] * (ROUNDS // 2)
    others = [cell(name, shaking) for name in ("eager", "default", "max-autotune", "table")]
    buckets = [
        ({"seqlen": 16}, [*others, cell("table-padded", [11.5] * ROUNDS)]),
        ({"seqlen": 32}, [*others, cell("table-padded", [12.5] * ROUNDS)]),
    ]
    write(tmp_path / "one.json", "unaligned.py:VitPatch", buckets)
    text = (
        "<!-- results: one -->\n| {padded_not_slower:all} |\n\n"
        "<!-- rows: padded -->\n| layer | M | slower than |\n| --- | --- | --- |\n"
        "| {model} | {seqlen} | {slower} |\n"
    )
    goal, *_, quiet, slow = page(text).splitlines()
    assert goal == "| 1 of 2 | missed |"
    assert quiet == "| VitPatch | 16 |  |"
    assert "`max-autotune`, 0.88x" in slow


def test_text_without_results_is_left_out(page: Any, tmp_path: Path) -> None:
    """What was never measured has no heading; a table without rows has no head."""
    (tmp_path / "here.json").write_text('{"items": [], "size": 3}')
    text = (
        "# Page\n<!-- results: absent -->\n## Absent\n\n{size}\n"
        "<!-- results: here -->\n## Here\n\nof {size}\n\n"
        "<!-- rows: items -->\n| name |\n| --- |\n| {name} |\n\nend\n"
    )
    assert page(text) == "# Page\n## Here\n\nof 3\n\nend\n"


def test_a_cell_without_its_field_is_empty_and_a_sentence_is_refused(
    modules: Any, page: Any, tmp_path: Path
) -> None:
    """A row may lack a field or have null; prose that lacks one names it."""
    rows = [{"a": 1, "b": {"c": 2.25}}, {"a": None}, {"a": [1, 2], "b": None}]
    (tmp_path / "here.json").write_text(json.dumps({"items": rows}))
    text = "<!-- results: here -->\n<!-- rows: items -->\n| {a} | {b[c]:.1f} |\n"
    assert page(text) == "| 1 | 2.2 |\n|  |  |\n| 1, 2 |  |\n"
    with pytest.raises(modules["template"].AbsentError, match="b"):
        page("<!-- results: here -->\nIt is {b}.\n")


def test_each_fills_the_text_once_for_each_pattern(page: Any, tmp_path: Path) -> None:
    """Fields are those of the first document; others are named by what their name begins with."""
    for name in ("one-1", "one-2", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"size": len(name)}))
    assert page("<!-- each: two one-* -->\n{result} {size}\n") == "two 3\none-1 5\n"
    assert page("<!-- results: * -->\n{size} {two[size]}\n") == "5 3\n"


def test_a_goal_is_judged_as_it_is_printed(page: Any, tmp_path: Path) -> None:
    """At most 1.3 is reached at 1.3004, which is printed as 1.3, and missed at 1.3006."""
    (tmp_path / "here.json").write_text(json.dumps({"low": 1.3004, "high": 1.3006}))
    text = "<!-- results: here -->\n{low:at most 1.3} / {high:at most 1.3} / {high:at least 1.3}\n"
    assert page(text) == "1.3 | reached / 1.301 | missed / 1.301 | reached\n"


def test_several_runs_are_a_median_with_bounds(modules: Any) -> None:
    """Bounds are told where they differ as printed; counts are told without a median."""
    values = modules["template"].Values
    assert f"{values([2.0, 1.0, 4.0]):.1f}" == "2.0 (1.0 to 4.0)"
    assert f"{values([2.01, 2.02]):.1f}" == "2.0"
    assert (f"{values([3, 1]):d}", f"{values([3]):d}") == ("1 to 3", "3")


def test_a_choice_is_read_back_as_it_was_written(modules: Any) -> None:
    """Timings name choices as text; each winner of a shipped table comes back but for its hash."""
    path = ROOT / "tables/nvidia-h200/products.bf16.json"
    winners = [row.winner for key, row in read(path).rows.items() if kind_of(key) is GEMM]
    found = [modules["timings"].winner_of(str(winner)) for winner in winners]
    assert [(w.family, w.uid, w.kwargs) for w in found] == [
        (w.family, w.uid, w.kwargs) for w in winners
    ]
