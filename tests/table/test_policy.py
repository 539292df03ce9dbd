"""The policy of a build, from its command-line options."""

from __future__ import annotations

from itertools import product

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import L2, Launch, Method
from warmup.table.schema import (
    BUILD_MODES,
    PolicyOptions,
    choose_method,
    choose_policy,
)


def test_a_policy_is_timed_as_it_will_serve_on_each_device() -> None:
    """The mode that serves with CUDA graphs is timed with them, other modes without."""
    for mode in BUILD_MODES:
        launch = Launch.CUDAGRAPH if mode == "max-autotune" else Launch.EAGER
        assert choose_method(PolicyOptions(mode=mode), "cuda") == Method(launch=launch, l2=L2.COLD)
    # Every launch and L2 option is used in every mode, and the limits do not change.
    for mode, launch, l2 in product(BUILD_MODES, Launch, L2):
        asked = PolicyOptions(mode=mode, launch=str(launch), l2=str(l2))
        assert choose_method(asked, "cuda") == Method(launch=launch, l2=l2), (mode, launch, l2)
    # The options that name the only possible method change nothing.
    for mode, launch, l2 in product(BUILD_MODES, (None, "eager"), (None, "warm")):
        asked = PolicyOptions(mode=mode, launch=launch, l2=l2)
        assert choose_method(asked, "cpu") == Method(launch=Launch.EAGER, l2=L2.WARM), (
            mode,
            launch,
            l2,
        )


def test_an_option_that_cannot_be_used_is_refused() -> None:
    for device, launch, l2, words in (
        ("cuda", "graph", None, "--launch 'graph' is unknown; use one of eager, cudagraph"),
        ("cuda", "EAGER", None, "--launch 'EAGER' is unknown"),
        ("cuda", None, "hot", "l2 'hot' is unknown; use one of cold, warm"),
        ("cuda", "", None, "--launch '' is unknown"),
        ("cpu", "cudagraph", None, "a CPU has no CUDA graphs"),
        ("cpu", None, "cold", "a CPU has no CUDA graphs and is timed warm"),
        ("cpu", "no", None, "--launch 'no' is unknown"),
    ):
        with pytest.raises(SettingsError) as caught:
            choose_method(PolicyOptions(launch=launch, l2=l2), device)
        assert words in str(caught.value), device
    for top_k in (-1, 65):
        with pytest.raises(SettingsError, match="give a number from 0 to 64"):
            choose_method(PolicyOptions(fused_top_k=top_k), "cuda")
    with pytest.raises(SettingsError, match="use one of max-autotune-gemm, max-autotune"):
        choose_policy(PolicyOptions(mode="fast"), "cuda", {})
