"""The sections of the benchmark page about winners, from results that say something else."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The modules of the page, with an empty folder of results."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/benchmarks"))
    modules = {name: importlib.import_module(name) for name in ("proof", "winners", "timings")}
    monkeypatch.setattr(modules["proof"], "RESULTS", tmp_path)
    return modules


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
    said = page["winners"].epilogues(["one", "absent"], "Title", "")
    assert [line for line in said.splitlines() if line.startswith("- ")] == [
        "- SiluMul 8 x 4, M=16: 10.3 us against 10 of `eager`, 0.97x (0.97 to 0.97), beyond noise"
    ]


def test_the_mean_waits_for_all_classes_with_an_epilogue(page: Any, tmp_path: Path) -> None:
    """The target is judged over three classes: it is reached with all, and open without one."""
    for model in ("BiasGelu", "SiluMul", "Residual"):
        bucket = product(16, eager=12.0, default=12.0, max_autotune=10.5, table=10.0)
        write(tmp_path / f"{model}.json", f"products.py:{model}", [bucket])
    epilogues = page["winners"].epilogues
    assert "Measured: 1.050, reached." in epilogues(["BiasGelu", "SiluMul", "Residual"], "T", "")
    assert "Not all measured: Residual." in epilogues(["BiasGelu", "SiluMul"], "T", "")


def test_padding_is_slower_only_where_the_intervals_are_apart(page: Any, tmp_path: Path) -> None:
    """A larger median within max-autotune's interval is noise; one beyond it is told."""
    shaking = [10.0, 12.0] * (ROUNDS // 2)
    others = [cell(name, shaking) for name in ("eager", "default", "max-autotune", "table")]
    buckets = [
        ({"seqlen": 16}, [*others, cell("table-padded", [11.5] * ROUNDS)]),
        ({"seqlen": 32}, [*others, cell("table-padded", [12.5] * ROUNDS)]),
    ]
    write(tmp_path / "one.json", "unaligned.py:VitPatch", buckets)
    said = page["winners"].unaligned(["one"], "Title", "")
    assert "Slower beyond noise: VitPatch, M=32: 0.88x" in said
    assert "VitPatch, M=16: " not in said


def test_a_section_without_files_is_empty(page: Any) -> None:
    """What was never measured has no heading."""
    assert page["winners"].epilogues(["absent"], "Title", "Note") == ""
    assert page["winners"].unaligned(["absent"], "Title", "Note") == ""


def test_a_choice_is_read_back_as_it_was_written(page: Any) -> None:
    """Timings name choices as text; each winner of a shipped table comes back but for its hash."""
    path = ROOT / "tables/nvidia-h200/products.bf16.json"
    winners = [row.winner for key, row in read(path).rows.items() if kind_of(key) is GEMM]
    found = [page["timings"].winner_of(str(winner)) for winner in winners]
    assert [(w.family, w.uid, w.kwargs) for w in found] == [
        (w.family, w.uid, w.kwargs) for w in winners
    ]
