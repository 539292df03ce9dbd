"""`pads_asked_on`: about which GEMMs inductor's pad_mm pass asks on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._inductor.fx_passes import pad_mm

from warmup.core.dtypes import item_bytes, torch_name
from warmup.core.errors import ProblemError, SettingsError
from warmup.keys.pad_text import parse_padding
from warmup.keys.weight import ALIGNED_BYTES


def pads_asked_on(device: torch.device) -> Callable[[str], bool]:
    """Return whether the pass would measure the GEMM of a pad key on *device*.

    It rules out GEMMs that need no padding, and those that memory limits.

    Raises:
        SettingsError: the pass asks about no GEMM on such devices.
    """
    probe = torch.empty(1, device=device)
    if not pad_mm.check_device(probe, probe):
        raise SettingsError(
            f"inductor pads no GEMM on {device}", "run it on a GPU that inductor pads on"
        )

    def is_asked(key: str) -> bool:
        try:
            problem = parse_padding(key)
        except ProblemError:
            return False
        m, n, k = (dim.low for dim in (problem.m, problem.n, problem.k))
        unit = ALIGNED_BYTES // item_bytes(problem.dtype)
        if not any(pad_mm.get_padded_length(size, unit) for size in (m, n, k)):
            return False
        dtype: torch.dtype = getattr(torch, torch_name(problem.dtype))
        return bool(pad_mm.is_mm_compute_bound(m, k, n, dtype))

    return is_asked
