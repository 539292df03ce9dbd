"""Small trials on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from warmup.core.rows import L2, Family, Method, Winner
from warmup.core.trial import Candidate, Outcome, Samples, TensorSpec, Trial, ViewSpec

LIBRARY = Winner(Family.EXTERN, "aten::mm")


def dense(*sizes: int, dtype: str = "float32", offset: int = 0) -> TensorSpec:
    strides = torch.empty(sizes, device="meta").stride()
    return TensorSpec(sizes, tuple(strides), offset, dtype)


def extern(name: str) -> Candidate:
    spec = {"extern": name, "kwargs": {}, "writes": True}
    return Candidate(Winner(Family.EXTERN, f"aten::{name}"), spec)


def make_trial(names: Sequence[str] = ("mm",), **changes: Any) -> Trial:
    """Return a trial of ``mm`` of 256 x 192 by 192 x 128; the first of *names* is the control."""
    a, b = dense(256, 192), dense(192, 128)
    candidates = tuple(map(extern, names))
    return Trial(
        **{
            "key": "mm m=256 n=128 k=192 f32 a=row b=row out=f32 | epilogue=none",
            "op": "mm",
            "device": "cpu",
            "operands": (a, b),
            "views": (ViewSpec(0, a.sizes, a.strides, 0), ViewSpec(1, b.sizes, b.strides, 0)),
            "out": dense(256, 128),
            "candidates": candidates,
            "library": candidates[0].winner if candidates else extern("mm").winner,
            "method": Method(l2=L2.WARM),
            "tolerance": 1e-2,
            **changes,
        }
    )


def template(block: int, uid: str = "triton_mm", **kwargs: int) -> Winner:
    """Return a template's winner whose tile is *block* squared."""
    named = {"BLOCK_M": block, "BLOCK_N": block, **kwargs}
    return Winner(Family.TEMPLATE, uid, tuple(sorted(named.items())), "0123")


def timed(winner: Winner, *times_us: float, is_final: bool = True) -> Outcome:
    more = {"error": 0.01, "clock_mhz": 1500, "is_final": is_final}
    return Outcome(winner=winner, samples=Samples(times_us), **more)
