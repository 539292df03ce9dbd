"""The policy of a build, from its command-line options."""

from __future__ import annotations

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import L2, Method
from warmup.table.schema import PolicyOptions, choose_method, choose_policy


def test_a_gpu_is_timed_cold_and_a_cpu_warm() -> None:
    for device, l2, method in (
        ("cuda", None, Method(l2=L2.COLD)),
        ("cuda", "warm", Method(l2=L2.WARM)),
        ("cpu", None, Method(l2=L2.WARM)),
        ("cpu", "warm", Method(l2=L2.WARM)),
    ):
        assert choose_method(PolicyOptions(l2=l2), device) == method, (device, l2)


def test_the_algorithms_of_cublaslt_are_candidates_where_they_are_named() -> None:
    for backends, expected in ((None, "ATEN,TRITON"), ("cublaslt,aten", "ATEN,CUBLASLT")):
        policy = choose_policy(PolicyOptions(backends=backends), "cuda", {})
        assert policy.options["max_autotune_gemm_backends"] == expected


def test_an_option_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(SettingsError, match="l2 'hot' is unknown; use one of cold, warm"):
        choose_method(PolicyOptions(l2="hot"), "cuda")
    for top_k in (-1, 65):
        with pytest.raises(SettingsError, match="give a number from 0 to 64"):
            choose_method(PolicyOptions(fused_top_k=top_k), "cuda")
    named = "ATEN,CUBLASLT"
    with pytest.raises(SettingsError, match="choose among ATEN, CPP; only these"):
        choose_policy(PolicyOptions(backends=named), "cpu", {})
    with pytest.raises(SettingsError, match="CUBLASLT; remove CUBLASLT from --set backends, or"):
        choose_policy(PolicyOptions(backends=named, invariant=True), "cuda", {})
    with pytest.raises(SettingsError, match="use one of max-autotune-gemm, max-autotune"):
        choose_policy(PolicyOptions(mode="fast"), "cuda", {})
