"""`choose_policy`: the policy of a build, from the options of its caller and the device type.

A policy has how rows are measured and the inductor options that serving must share. Nothing here
knows torch; the options that switch measurements off are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import SettingsError
from warmup.core.method import L2, MAX_TOP_K, SEED, TOP_K, Launch, Method, OptionValue
from warmup.table import Policy
from warmup.table.schema import SEARCH_FIELDS

GEMM_BACKENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": ("ATEN", "CPP"),
    "cuda": ("ATEN", "TRITON"),
}
DEFAULT_MODE: Final = "max-autotune-gemm"
# Mode of a build -> the options that it switches on beside GEMM selection. Serving sets them too,
# because they also change the graph (decomposition.py); rows then answer, and nothing is measured.
BUILD_MODES: Final[Mapping[str, Mapping[str, bool]]] = {
    "max-autotune-gemm": {},
    "max-autotune": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
    "max-autotune-no-cudagraphs": {
        "max_autotune_pointwise": True,
        "coordinate_descent_tuning": True,
    },
}
TOLERANCE: Final[Mapping[str, float]] = {"f64": 1e-7, "f32": 1e-3, "f16": 5e-3, "bf16": 2e-2}
MOST_TIMES: Final = 1.5  # an error may be so many times the larger of eager's and default mode's
# Default mode counts where its error is at most so many times the larger of the floor and eager's
# error: a larger one is no rounding, and must not excuse the table.
MOST_DEFAULT: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The options of a build that decide its policy, as on the command line; None for a default."""

    mode: str = DEFAULT_MODE
    backends: str | None = None
    tolerance: float | None = None
    launch: str | None = None
    l2: str | None = None
    fused_top_k: int | None = None


def choose_policy(
    asked: PolicyOptions, device_type: str, switches: Mapping[str, bool | int | str]
) -> Policy:
    """Return the policy of a build with the options *asked* on a *device_type*.

    *switches* are the inductor options that decide what is measured, with the values that switch
    measurements off.

    Raises:
        SettingsError: an option is unknown, or cannot be used on *device_type*.
    """
    if asked.mode not in BUILD_MODES:
        raise SettingsError(
            f"--mode {asked.mode!r} is not a mode", f"use one of {', '.join(BUILD_MODES)}"
        )
    options: dict[str, bool | int | float | str | None] = {
        **switches,
        "max_autotune_gemm_backends": _backends(asked.backends, device_type),
        "max_autotune_gemm_search_space": "DEFAULT",
    }
    if device_type == "cpu":
        # The C++ GEMM template needs constant weights (utils.py, use_cpp_gemm_template).
        options["freezing"] = True
    else:
        has_triton = "TRITON" in str(options["max_autotune_gemm_backends"])
        options["max_autotune_conv_backends"] = "ATEN,TRITON" if has_triton else "ATEN"
    options |= BUILD_MODES[asked.mode]
    if BUILD_MODES[asked.mode]:
        # With these options its split size is measured while compiling, and no row could record it.
        options["triton.mix_order_reduction"] = False
    timing = choose_method(asked, device_type)
    limits = dict(TOLERANCE)
    if asked.tolerance is not None:
        limits = dict.fromkeys(TOLERANCE, asked.tolerance)
    return Policy(
        mode=asked.mode,
        options=options,
        timing=timing,
        seed=SEED,
        tolerance=limits,
        searches=frozenset(() if device_type == "cpu" else SEARCH_FIELDS),  # all are of Triton
    )


def options_served(policy: Policy, *, freezes: bool) -> dict[str, OptionValue]:
    """Return the options of *policy* that a compile gets.

    ``freezing`` is among them only where the caller says that it *freezes*: a weight that changes
    after the compile is ignored then. Without, it stays as the program has it.
    """
    return {key: value for key, value in policy.options.items() if freezes or key != "freezing"}


def choose_method(asked: PolicyOptions, device_type: str) -> Method:
    """Return how candidates are timed, by default as they will be served.

    On a GPU that is from a cold L2, and in one CUDA graph for the mode ``max-autotune``, which
    serves with CUDA graphs; for other modes calls are launched one at a time. A CPU is timed warm.

    Raises:
        SettingsError: an option is unknown, or cannot be used on *device_type*.
    """
    launch, l2 = asked.launch, asked.l2
    top_k = TOP_K if asked.fused_top_k is None else asked.fused_top_k
    if not 0 <= top_k <= MAX_TOP_K:
        raise SettingsError(f"--fused-top-k {top_k}", f"give a number from 0 to {MAX_TOP_K}")
    if launch is not None and launch not in set(Launch):
        raise SettingsError(f"--launch {launch!r} is unknown", f"use one of {', '.join(Launch)}")
    if l2 is not None and l2 not in set(L2):
        raise SettingsError(f"--l2 {l2!r} is unknown", f"use one of {', '.join(L2)}")
    if device_type == "cpu":
        if launch == Launch.CUDAGRAPH or l2 == L2.COLD:
            raise SettingsError("a CPU has no CUDA graphs and is timed warm", "drop the option")
        return Method(launch=Launch.EAGER, l2=L2.WARM, fused_top_k=top_k)
    default = Launch.CUDAGRAPH if asked.mode == "max-autotune" else Launch.EAGER
    return Method(launch=Launch(launch or default), l2=L2(l2 or L2.COLD), fused_top_k=top_k)


def _backends(text: str | None, device_type: str) -> str:
    known = GEMM_BACKENDS[device_type]
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
