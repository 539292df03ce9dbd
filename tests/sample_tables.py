"""Small tables of a stated H200, and what they consist of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmup.core.device import Device, Runtime
from warmup.core.files import LOCKS_FOLDER
from warmup.core.rows import Evidence, Family, Flag, Method, Rejection, Row, Winner
from warmup.core.trial import Outcome, Samples
from warmup.table.schema import Policy, Provenance, Table

_DEVICE = Device(
    type="cuda", vendor="nvidia", name="NVIDIA H200", arch="sm_90", sm_count=132, memory_gib=140
)
_RUNTIME = Runtime(
    device=_DEVICE, torch="2.13.0", triton="3.7.0", cuda="13.0", driver="580.65", cublas="13.1.0"
)
_POLICY = Policy(
    mode="max-autotune-gemm",
    options={"max_autotune_gemm_backends": "ATEN,TRITON", "dynamic_scale_rblock": False},
    timing=Method(),
    seed=0,
    tolerance={"bf16": 0.01, "f32": 0.0001},
)


def make_runtime(**changes: str | int | None) -> Runtime:
    """An H200 with changed fields: ``make_runtime(driver="581", sm_count=78)``."""
    of_device = {name: changes.pop(name) for name in tuple(changes) if hasattr(_DEVICE, name)}
    return replace(_RUNTIME, device=replace(_DEVICE, **of_device), **changes)  # type: ignore[arg-type]


def make_key(
    m: int | str = 560, *, op: str = "addmm", n: int | str = 1280, epilogue: str = "none"
) -> str:
    """One GEMM key: ``make_key(1024, op="mm", n=64, epilogue="relu")``."""
    return f"{op} m={m} n={n} k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue={epilogue}"


def make_row(uid: str = "triton_mm", time_us: float = 10.5, **kwargs: int | str | None) -> Row:
    """One row: ``make_row("triton_mm", 8.5, BLOCK_M=32)``."""
    named = kwargs or {"BLOCK_M": 64, "BLOCK_N": 128, "ACC_TYPE": "tl.float32", "num_warps": 4}
    winner = Winner(Family.TEMPLATE, uid, tuple(sorted(named.items())), "0123456789abcdef")
    evidence = Evidence(
        time_us=time_us,
        library_us=12.25,
        runner_up="bias_addmm",
        runner_up_us=11.5,
        tried=20,
        rejected=((Rejection.LAUNCH, 1),),
        spread=0.02,
        band=0.03,
        error=0.011,
        tflops=150.5,
        gbps=1200.25,
        peak_share=0.31,
        clock_mhz=1980,
        flags=(Flag.NEAR_TIE,),
    )
    return Row(winner, evidence)


def make_rows(*sizes: int) -> dict[str, Row]:
    """A row of its own for each ``m`` of *sizes*."""
    return {make_key(m): make_row(BLOCK_M=m) for m in sizes}


def make_table(
    rows: Mapping[str, Row] | None = None,
    *,
    runtime: Runtime = _RUNTIME,
    policy: Policy = _POLICY,
    created: str = "2026-01-02T03:04:05Z",
) -> Table:
    """A table; two rows when none are given: ``make_table({key: row}, created=...)``."""
    if rows is None:
        rows = {make_key(560): make_row(), make_key(1024): make_row(BLOCK_M=128)}
    return Table(Provenance(runtime, "0.1.0", created), policy, dict(rows))


EMPTY = make_table({})


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below *folder* but those of locks, with the bytes of the files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if LOCKS_FOLDER not in path.parts
    }


def make_outcome(winner: Winner, time_us: float | None = None, **changes: Any) -> Outcome:
    """A candidate with stable times: ``make_outcome(winner, 10.5)``."""
    samples = None if time_us is None else Samples((time_us,) * 12)
    return Outcome(winner=winner, samples=samples, **changes)
