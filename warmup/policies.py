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
# Mode of a build -> what is switched on beside GEMM choice. Serving keeps it, as it changes the
# graph too (decomposition.py); there the rows answer, and nothing of it measures.
MODES: Final[Mapping[str, Mapping[str, bool]]] = {
    "max-autotune-gemm": {},
    "max-autotune": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
    "max-autotune-no-cudagraphs": {
        "max_autotune_pointwise": True,
        "coordinate_descent_tuning": True,
    },
}
TOLERANCE: Final[Mapping[str, float]] = {"f64": 1e-7, "f32": 1e-3, "f16": 5e-3, "bf16": 2e-2}
_TIMING: Final = "inductor benchmarker, eager launches, random inputs"
_SEED: Final = 0


def choose_policy(
    mode: str,
    backends: str | None,
    device_type: str,
    tolerance: float | None,
    switches: Mapping[str, bool | int | str],
) -> Policy:
    """Return the policy of a build on a *device_type* for the command line's words.

    *switches* are the inductor options that decide what is measured, with their quiet values.

    Raises:
        SettingsError: the mode is unknown, or a backend cannot be used there.
    """
    if mode not in MODES:
        raise SettingsError(f"--mode {mode!r} is not a mode", f"use one of {', '.join(MODES)}")
    options: dict[str, bool | int | float | str | None] = {
        **switches,
        "max_autotune_gemm_backends": _backends(backends, device_type),
        "max_autotune_gemm_search_space": "DEFAULT",
    }
    if device_type == "cpu":
        # Only constant weights let the C++ GEMM template compete (utils.py, use_cpp_gemm_template).
        options["freezing"] = True
    else:
        # A convolution has one choice then; no row kind covers Triton's own.
        options["max_autotune_conv_backends"] = "ATEN"
    options |= MODES[mode]
    if MODES[mode]:
        # Under these its split size would be measured while compiling, and written nowhere.
        options["triton.mix_order_reduction"] = False
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
