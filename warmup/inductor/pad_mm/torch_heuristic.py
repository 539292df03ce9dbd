"""`torch_pad_heuristic`: what torch's own learned heuristic (AutoHeuristic) says about padding.

Torch has one for A100s and, from 2.12 on, one for H100s and H200s, for ``mm`` alone. Predictions
are compared with it, and it decides nothing here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._inductor.autoheuristic.autoheuristic_utils import AHContext, pad_mm_operations
from torch._inductor.fx_passes.pad_mm import get_padded_length

from warmup.core.dtypes import item_bytes, torch_name
from warmup.core.errors import ProblemError
from warmup.inductor.internals import check_internals
from warmup.inductor.versions import version_for
from warmup.keys.pad import PadProblem
from warmup.keys.pad_text import parse_padding
from warmup.keys.weight import ALIGNED_BYTES

# By the arch that a model file names: the smallest m, n and k that the heuristic is for.
_SMALLEST: Final = {"sm_80": 512, "sm_90": 768}
_DECISIONS: Final = {"pad": True, "orig": False}


def torch_pad_heuristic(arch: str) -> Callable[[str], bool | None] | None:
    """Return whether torch's heuristic for *arch* pads a pad key; None where this torch has none.

    The function returns None where the heuristic is unsure, and for keys that it is not for.

    Raises:
        InductorChangedError: the heuristic is not where this torch should have it.
    """
    place = version_for(torch.__version__).PAD_HEURISTICS.get(arch)
    if place is None:
        return None
    check_internals((f"{place}.get_decision",))
    heuristic, smallest = pkgutil.resolve_name(place)(), _SMALLEST[arch]

    def decide(key: str) -> bool | None:
        try:
            problem = parse_padding(key)
        except ProblemError:
            return None
        sizes = (problem.m, problem.n, problem.k)
        if problem.op != "mm" or not all(dim.is_static and dim.low >= smallest for dim in sizes):
            return None
        if not all(str(layout) in {"row", "col"} for layout in (problem.a, problem.b)):
            return None
        choice = heuristic.get_decision(_context_of(problem), [*_DECISIONS])
        return _DECISIONS.get(choice)

    return decide


def _context_of(problem: PadProblem) -> Any:
    """Return what torch's pass tells the heuristic about *problem*."""
    m, n, k = (dim.low for dim in (problem.m, problem.n, problem.k))
    unit = ALIGNED_BYTES // item_bytes(problem.dtype)
    a_strides = (k, 1) if str(problem.a) == "row" else (1, m)
    b_strides = (n, 1) if str(problem.b) == "row" else (1, k)
    dtype = getattr(torch, torch_name(problem.dtype))
    numbers = {
        "m": m,
        "k": k,
        "n": n,
        **{f"mat1_stride_{i}": stride for i, stride in enumerate(a_strides)},
        **{f"mat2_stride_{i}": stride for i, stride in enumerate(b_strides)},
        "m_padded_length": get_padded_length(m, unit),
        "k_padded_length": get_padded_length(k, unit),
        "n_padded_length": get_padded_length(n, unit),
        "mat1_align_size": unit,
        "mat2_align_size": unit,
    }
    words = {
        "mat1_dtype": dtype,
        "mat2_dtype": dtype,
        "prepadded_mat1": "a" in problem.free,
        "prepadded_mat2": "b" in problem.free,
        "using_tf32": problem.fp32 == "tf32" if problem.fp32 is not None else "not_float_32",
    }
    context = AHContext()
    for name, value in numbers.items():
        context.add_feature(name, value)
    for name, word in words.items():
        context.add_feature(name, word, is_categorical=True)
    context.apply_operations(pad_mm_operations())
    return context
