"""`challengers`: the candidates that are measured again with their region."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from warmup.core.method import Method
from warmup.core.rows import Evidence, Family, Row, Timing, Tuned, Winner
from warmup.core.trial import Region, Step
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion
from warmup.table.schema import TOLERANCE
from warmup.tuning.trials import challengers, region_trial

MM = "mm m={} n=512 k=256 bf16 a=row b=row out=bf16 | epilogue={}"
INT_MM = "int_mm m=64 n=512 k=256 i8 a=row b=col out=i32 | epilogue=mul(f32[64,1])"
LIBRARY = Winner(Family.EXTERN, "aten::mm")


def template(block: int) -> Winner:
    return Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", block),), "0123")


def region_with(*flops: int) -> Region:
    """Return a region of a GEMM of 100 operations, and of other GEMMs with *flops*."""
    return Region(inputs=(), steps=(), outputs=(), flops=(100, *flops))


def tiles_of(region: Region, whole_us: float | None) -> list[object]:
    """Return the challengers' tiles; bare, the library takes 10 us and each tile its size in us."""
    times_us: dict[Winner, float | None] = {template(n): float(n) for n in (64, 8, 12, 16)}
    times_us |= {LIBRARY: 10.0, template(128): None}
    evidence = Evidence(time_us=8, library_us=10, runner_up=None, runner_up_us=None, tried=6)
    timings = tuple(Timing(winner, time_us) for winner, time_us in times_us.items())
    bare = Tuned(MM, Row(template(8), evidence), timings)
    winners = challengers(bare, LIBRARY, region, whole_us)
    return [dict(winner.kwargs)["BLOCK_M"] for winner in winners]


def test_candidates_that_cannot_win_in_the_region_are_left_out() -> None:
    """Fusing operations cannot make a kernel faster than it is bare; fastest first."""
    assert tiles_of(region_with(), 15.0) == [8, 12]
    # They count for four fifths of their estimated time: 32 of 46 us, which leaves 14.
    assert tiles_of(region_with(400), 46.0) == [8, 12]
    # 20 us are less than 10 and 32 us: the other GEMM takes less than estimated.
    assert tiles_of(region_with(400), 20.0) == [8, 12, 16]
    # A region faster than the GEMM in it was timed when the device had less to do.
    assert tiles_of(region_with(), 5.0) == [8]
    # A region without a time leaves out no candidate.
    assert tiles_of(region_with(), None) == [8, 12, 16, 64]


def limits_of(key: str, *casts: str) -> dict[str, float]:
    """Return the tolerances of a region's outputs, by dtype; *casts* are made on the way."""
    steps = tuple(
        Step("prims.convert_element_type.default", ({"dtype": name},), {}) for name in casts
    )
    question = GemmQuestion(GemmProblem.of_key(key), "cuda", (), library=LIBRARY)
    region = Region(inputs=(), steps=steps, outputs=(), flops=(1,))
    trial = region_trial(question, region, Method(), TOLERANCE, 0)
    assert trial.tolerance is not None
    return {"the product's": trial.tolerance, **trial.tolerances}


def test_outputs_have_the_limit_of_their_way() -> None:
    """An integer product is exact; dequantized in bf16, the float32 after it is no better."""
    limits = limits_of(INT_MM, "bfloat16", "float32")
    assert limits["the product's"] == 0
    assert limits["float32"] == limits["bfloat16"] == TOLERANCE["bf16"]
    assert limits_of(INT_MM, "float32")["float32"] == TOLERANCE["f32"]
    # Rounding to e4m3 alone is 2.4e-2; an int8 output is a rounded result, not an exact one.
    limits = limits_of(MM.format(64, "none"), "float8_e4m3fn", "int8")
    assert (limits["float8_e4m3fn"], limits["int8"]) == (5e-2, TOLERANCE["bf16"])
    assert limits["bfloat16"] == TOLERANCE["bf16"]
