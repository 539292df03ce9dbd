"""`parse_padding`: a pad key as a `PadProblem`. Keys may come from logs, and are checked."""

from __future__ import annotations

from warmup.keys.gemm_text import read_dim, read_layout
from warmup.keys.pad import PAD, PadProblem


def parse_padding(key: str) -> PadProblem:
    """Return the problem with the pad key *key*.

    Raises:
        ProblemError: *key* is not a pad key.
    """
    parts = PAD.ingredients(key)
    return PadProblem(
        op=parts["op"],
        m=read_dim(parts["m"]),
        n=read_dim(parts["n"]),
        k=read_dim(parts["k"]),
        dtype=parts["dtype"],
        a=read_layout(parts["a"]),
        b=read_layout(parts["b"]),
        batch=read_dim(parts["batch"]) if "batch" in parts else None,
        bias=parts.get("bias"),
        free=parts.get("free", ""),
        fp32=parts.get("fp32"),
    )
