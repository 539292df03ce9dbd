"""How a build measures, and the inductor options that serving must share. Floor 2; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from warmup.errors import SettingsError
from warmup.table import Policy

BACKENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": ("ATEN", "CPP"),
    "cuda": ("ATEN", "TRITON"),
}
TOLERANCE: Final[Mapping[str, float]] = {"f64": 1e-7, "f32": 1e-3, "f16": 5e-3, "bf16": 2e-2}
_TIMING: Final = "inductor benchmarker, eager launches, random inputs"
_SEED: Final = 0


def choose_policy(
    mode: str, backends: str | None, device_type: str, tolerance: float | None
) -> Policy:
    """Return the policy of a build on a *device_type* for the command line's words.

    Raises:
        SettingsError: a backend cannot be used there.
    """
    options: dict[str, bool | int | float | str | None] = {
        "max_autotune_gemm_backends": _backends(backends, device_type),
        "max_autotune_gemm_search_space": "DEFAULT",
    }
    if device_type == "cpu":
        # Only constant weights let the C++ GEMM template compete (utils.py, use_cpp_gemm_template).
        options["freezing"] = True
    else:
        # It re-benchmarks reductions in every process up to torch 2.13.
        options["dynamic_scale_rblock"] = False
    limits = dict(TOLERANCE) if tolerance is None else dict.fromkeys(TOLERANCE, tolerance)
    return Policy(mode=mode, options=options, timing=_TIMING, seed=_SEED, tolerance=limits)


def _backends(text: str | None, device_type: str) -> str:
    known = BACKENDS[device_type]
    if text is None:
        return ",".join(known)
    chosen = [word.strip().upper() for word in text.split(",")]
    unknown = [word for word in chosen if word not in known]
    if unknown or len(set(chosen)) != len(chosen):
        raise SettingsError(
            f"--backends {text!r} cannot be used on {device_type}",
            f"choose among {', '.join(known)}; only these can be fed back at serving",
        )
    return ",".join(word for word in known if word in chosen)
