"""Switches: inductor options that decide what is benchmarked; and all options a table may set.

While a table is installed its switches replace the caller's values, so that a mode such as
``max-autotune`` benchmarks nothing. Any other option of a table yields to the caller's value
(options.py). A table cannot set an option that is not listed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from torch._inductor import config as inductor_config

from warmup.core.errors import InductorChangedError, SettingsError
from warmup.core.method import OptionValue

# Each switch with the value that prevents its benchmarks. The names are those of
# torch/_inductor/config.py; a version of torch without the option lacks the benchmark too.
_QUIET: Final[Mapping[str, bool | int | str]] = {
    "max_autotune_gemm": True,  # lists GEMM candidates, of which warmup selects the row's
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "dynamic_scale_rblock": False,  # re-measures reductions in every process up to torch 2.13
    "benchmark_fusion": False,
    "benchmark_epilogue_fusion": False,
    "benchmark_template_fusion": False,  # its name from torch 2.15 on
    "benchmark_combo_kernel": False,
    "combo_kernels": False,
    "b2b_gemm_pass": False,
    "distributed_max_autotune_gemm": False,
    "pipeline_max_autotune_gemm": False,
    "runtime_estimations_mms_benchmark": False,
    "triton.multi_kernel": 0,
    "triton.mix_order_reduction_autotune_split_size": False,
}
_OTHER_VARIABLES: Final = {
    "benchmark_template_fusion": "BENCHMARK_EPILOGUE_FUSION",
    "pipeline_max_autotune_gemm": "PIPELINE_GEMM_AUTOTUNING",
}
_MUST_EXIST: Final = ("max_autotune_gemm", "max_autotune", "coordinate_descent_tuning")
_YIELDING: Final = frozenset(
    {
        "max_autotune_gemm_backends",
        "max_autotune_gemm_search_space",
        "max_autotune_conv_backends",
        "freezing",
        "triton.mix_order_reduction",
    }
)


def quiet_switches() -> dict[str, bool | int | str]:
    """Return each switch of the installed torch, with the value that prevents benchmarks.

    Raises:
        InductorChangedError: a switch that every supported torch has is gone.
    """
    known: Mapping[str, Any] = vars(inductor_config)["_config"]
    for name in _MUST_EXIST:
        if name not in known:
            raise InductorChangedError(f"there is no option {inductor_config.__name__}.{name}")
    return {
        name: value
        for name, value in _QUIET.items()
        if name in known and getattr(known[name], "alias", None) is None
    }


def is_switch(name: str) -> bool:
    """Return whether the option *name* is a switch."""
    return name in _QUIET


def is_set_in_environment(name: str) -> bool:
    """Return whether the environment variable for the option *name* is set.

    Inductor reads the variable on import and takes its value as the option's default.
    """
    variable = _OTHER_VARIABLES.get(name, name.removeprefix("triton.").upper())
    return f"TORCHINDUCTOR_{variable}" in os.environ


def check_options(options: Mapping[str, OptionValue]) -> None:
    """Check that a table may set *options*.

    Raises:
        SettingsError: a table may not set an option, or its value has the wrong type.
    """
    for name, value in options.items():
        if name not in _YIELDING and name not in _QUIET:
            raise SettingsError(
                f"the table's policy sets the inductor option {name}, which no build writes",
                "build the table again",
            )
        expected = type(_QUIET[name]) if name in _QUIET else (str, bool)
        if not isinstance(value, expected):
            raise SettingsError(
                f"the table's policy sets the inductor option {name} to {value!r}",
                "build the table again",
            )
