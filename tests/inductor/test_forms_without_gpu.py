"""Which rows a small Llama asks for on a stated H100, whole and with its layers compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "cuda_forms.py"
Keys = dict[str, set[str]]


@pytest.fixture(scope="module")
def forms(
    run_program: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Keys]:
    """The keys of four layers, a norm and a head, by form and kind."""
    found = run_program(tmp_path_factory.mktemp("forms"), str(PROGRAM), "4")
    return {form: {kind: set(keys) for kind, keys in own.items()} for form, own in found.items()}


def counts(forms: dict[str, Keys], kind: str) -> dict[str, int]:
    """Return how many keys of *kind* both forms ask for, and each of them alone."""
    whole, once = forms["whole"][kind], forms["once"][kind]
    return {
        "both": len(whole & once),
        "whole": len(whole - once),
        "once": len(once - whole),
    }


def test_gemms_differ_where_one_is_fused_across_a_border(forms: dict[str, Keys]) -> None:
    """The whole graph asks for one GEMM more: the last layer's, with the cast of the norm behind.

    The seven others are those of a layer alone and of the head.
    """
    assert counts(forms, "gemm") == {"both": 7, "whole": 1, "once": 0}
    (border,) = forms["whole"]["gemm"] - forms["once"]["gemm"]
    assert border.endswith("epilogue=add(bf16[256,512]),to(f32)")


def test_generated_kernels_differ_where_residuals_cross_a_border(forms: dict[str, Keys]) -> None:
    """The whole graph adds the residuals of several layers in the kernels of their norms.

    A layer alone ends in an addition, and begins with a norm of what it was given.
    """
    assert counts(forms, "launch") == {"both": 7, "whole": 4, "once": 2}
