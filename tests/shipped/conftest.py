"""The shipped tables, read once, and a small one whose evidence agrees with itself, to damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import make_table

from warmup.core.roofline import Peaks, gbps_of, share_of_peak, tflops_of
from warmup.core.rows import Evidence, Family, Row, Scope, Winner
from warmup.table.schema import Table
from warmup.table.store import read

PEAKS = Peaks(tflops={"bf16": 800.0}, gbps=4400.0, clock_mhz=1980, measured="2026-01-02")
END = "bf16 a=row b=col"
KEYS = {
    "library": f"mm m=16 n=4096 k=4096 {END} out=bf16 | epilogue=none",
    "template": f"addmm m=560 n=3420 k=1280 {END} bias=1d out=bf16 | epilogue=none",
    "fused": f"mm m=2048 n=1024 k=4096 {END} out=bf16 | epilogue=relu",
    "launch": "launch triton_poi_fused_add x=1048576 args=*bf16,i32 source=3f2a9c0d41b7e865",
    "pad": f"pad addmm m=560 n=1280 k=3420 {END} bias=1d free=a",
    "ranged": f"mm m=257..560 n=4096 k=4096 {END} out=bf16 | epilogue=none",
    "weight": "weight n m=1024 in=768 features=50257 bf16 bias=0",
}


def _evidence(time_us: float, library_us: float, runner_up_us: float) -> Evidence:
    return Evidence(
        time_us=time_us,
        library_us=library_us,
        runner_up="another",
        runner_up_us=runner_up_us,
        tried=20,
        spread=0.004,
        band=0.03,
    )


def _product(
    time_us: float,
    library_us: float,
    runner_up_us: float,
    *,
    sizes: tuple[int, int, int],
    bias: int = 0,
    bare_us: float | None = None,
) -> Evidence:
    """Return the evidence for a bf16 product of *sizes* m, n and k on a device with ``PEAKS``."""
    m, n, k = sizes
    flops, moved = 2 * m * n * k, 2 * (m * k + k * n + m * n + bias)
    alone = bare_us or time_us
    return replace(
        _evidence(time_us, library_us, runner_up_us),
        error=0.0156,
        tflops=float(f"{tflops_of(flops, alone):.4g}"),
        gbps=float(f"{gbps_of(moved, alone):.4g}"),
        peak_share=round(share_of_peak(PEAKS, "bf16", flops, moved, alone), 3),
        clock_mhz=1980,
        scope=Scope.BARE if bare_us is None else Scope.FUSED,
        bare_us=bare_us,
    )


@pytest.fixture(scope="session")
def shipped() -> Mapping[Path, Table]:
    """All tables that ship, by path, each read once."""
    folder = Path(__file__).resolve().parents[2] / "tables"
    return {path: read(path) for path in sorted(folder.rglob("*.json"))}


@pytest.fixture(scope="session")
def keys() -> Mapping[str, str]:
    return KEYS


@pytest.fixture(scope="session")
def sound() -> Table:
    library, template = Winner(Family.EXTERN, "aten::mm"), Winner(Family.TEMPLATE, "triton::mm")
    slower = _product(45.0, 43.0, 43.0, sizes=(560, 4096, 4096))
    along = ((257, 1.24), (408, 1.0), (560, 1.047))
    rows = {
        "ranged": Row(template, replace(slower, along=along)),
        "library": Row(library, _product(15.0, 15.0, 16.0, sizes=(16, 4096, 4096))),
        "template": Row(template, _product(15.0, 45.0, 16.0, sizes=(560, 3420, 1280), bias=3420)),
        "fused": Row(library, _product(30.0, 30.0, 35.0, sizes=(2048, 1024, 4096), bare_us=25.0)),
        "launch": Row(Winner(Family.LAUNCH, "pointwise"), _evidence(6.4, 6.4, 6.5)),
        "pad": Row(Winner(Family.PAD, "as_is"), _evidence(40.0, 40.0, 50.0)),
        "weight": Row(Winner(Family.WEIGHT, "padded"), _evidence(140.0, 840.0, 840.0)),
    }
    return make_table({KEYS[name]: row for name, row in rows.items()})
