"""Algorithms of cuBLASLt, without a GPU: a library in its place multiplies in host memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import CDLL, byref, c_uint64
from itertools import product
from typing import Any

import pytest
import torch

from warmup.inductor.gemm import blas

pytest.importorskip("triton")

PROGRAM = "cuda_blas.py"
Ask = Callable[..., dict[str, Any]]
LINEAR = {"m": 16, "n": 256, "k": 512, "linear": True, "search": "default"}
SERVED = {**LINEAR, "op": "mm", "serve": "algorithms"}
CALLED = {"call": 1, "m": 5, "n": 24, "k": 16, "dtype": "bfloat16", "x": "rows", "w": "columns"}
SECOND = "id_66_tile_0_stages_2_splitk_0_red_0_swizzle_0_custom_1_inner_0_cluster_4"
OTHERS = [SECOND.replace("stages_2", f"stages_{stages}") for stages in (3, 4)]  # unknown, too large


def test_a_call_multiplies_in_every_layout(ask: Ask) -> None:
    """Through cuBLASLt's functions and structs: rows and columns, gaps, both dtypes, a bias."""
    lies = ("rows", "columns")
    for x, w, gap, dtype in product(lies, lies, (0, 8), ("bfloat16", "float16")):
        case = {**CALLED, "x": x, "w": w, "gap": gap, "dtype": dtype}
        for other in ({}, {"bias": 1}, {"bias": 2}, {"m": 1, "bias": 2}):
            found = ask(**{**case, **other})
            assert found["apart"] < 1e-2, (case, other)
            assert (found["fallbacks"], found["events"]) == ({}, []), (case, other)
    assert ask(**CALLED, first=float("nan"))["is_nan"] == [True, *[False] * 4]


def test_a_call_that_the_algorithm_cannot_compute_is_torchs_and_reported(ask: Ask) -> None:
    """The result is right, every call is counted, and the first of a table is an event."""
    for case, reason in (
        ({"off": 3}, "an address is not aligned"),
        ({"algorithm": SECOND.replace("66", "67")}, "status 15 of cublasLtMatmulAlgoInit"),
        ({"algorithm": OTHERS[0]}, "status 15 of cublasLtMatmulAlgoCheck"),
        ({"algorithm": OTHERS[1]}, f"status 0, workspace {2**26}"),
        ({"words": {"cublas": 120000}}, "the row is of cuBLASLt 120000, here is 130100"),
    ):
        for bias in (0, 1):
            found = ask(**CALLED, **case, bias=bias, times=3)
            op = "addmm" if bias else "mm"
            assert found["fallbacks"] == {f"{op} {reason}": 3}, case
            assert found["apart"] < 1e-2, case
            (event,) = found["events"]
            assert event["name"] == "policy.contradicted"
            assert event["found"] == f"torch's own call ({reason})"
    assert ask(**CALLED, off=3, timing=True)["raised"] == "an address is not aligned"
    assert ask(**CALLED, most=0)["fallbacks"] == {"mm there are too many products": 1}
    assert ask(**CALLED, most=0, off=3, timing=True)["raised"] == "an address is not aligned"


def test_the_backend_makes_algorithms_candidates(ask: Ask) -> None:
    """Of mm and addmm with fixed sizes, alpha and beta of 1, in 16 bits; a build asks for them."""
    for op in ("mm", "addmm"):
        found = ask(**LINEAR, op=op)
        assert found["added"]["algorithms"] == 2, op
        kwargs = {"algorithm": SECOND, "cublas": 130100}
        assert found["last"]["algorithms"] == {"uid": f"blas::{op}", **kwargs}
        asked = ask(**LINEAR, op=op, asked=True)
        assert asked["added"]["algorithms"] == 2
        assert f"blas::{op} 66.0.2.0.0.0.1.0.4" in asked["short"]
        # Two algorithms, whose custom and cluster have 8 and 9 values, of which they have one each;
        # the library in place of cuBLASLt refuses another number of parts of K.
        assert len({*asked["varied"]}) == len(asked["varied"]) == 2 * (7 + 8)
        varied = SECOND.replace("custom_1", "custom_3")
        assert varied in asked["varied"]
        row = {**LINEAR, "search": "imported", "imported": [{**kwargs, "algorithm": varied}]}
        assert any(varied in one for one in ask(**row, op=op, asked=True)["measured"]), op
    for other in (
        *({"backends": "ATEN,TRITON"}, {"m": [2, 1024]}, {"op": "scaled_mm"}),
        *({"op": "bmm", "linear": False}, {"full": True}),
        *({"scalars": {"beta": 0.5}, "op": "addmm"}, {"dtype": "float32"}),
    ):
        assert "algorithms" not in ask(**{**LINEAR, "op": "mm", **other})["added"], other


def test_a_row_is_served_by_a_call_with_its_config(ask: Ask) -> None:
    """The generated code names the function and the algorithm; an epilogue has its own kernel."""
    for op in ("mm", "addmm"):
        served = ask(**{**SERVED, "op": op}, epilogue=True)["served"]
        assert served["externs"] == [f"warmup_blas_{op}"]
        assert served["launches"] == ["triton_poi_fused_0"]
        (call,) = served["blas"]
        assert f"algorithm='{SECOND}', cublas=130100, out=" in call
        (event,) = served["events"]
        assert (event["name"], event["winner"].partition("(")[0]) == ("lookup.hit", f"blas::{op}")


def test_a_row_that_cannot_be_served_is_a_miss(ask: Ask) -> None:
    """Of another version of cuBLASLt, a config that it refuses, or of none; else the library."""
    for case, reason in (
        ({"version": 130101}, "template_changed"),
        *(({"words": {"algorithm": other}}, "choice_rejected") for other in OTHERS),
        ({"words": {"algorithm": "id_66"}}, "choice_rejected"),
        ({"words": {"cublas": "new"}}, "choice_rejected"),
        ({"words": {"more": 1}}, "choice_rejected"),
        ({"aot": True}, "template_absent"),
    ):
        served = ask(**SERVED, **case, mode="fallback")["served"]
        assert [event["reason"] for event in served["events"]] == [reason], case
        assert served["externs"] == ["mm"], case
        refused = ask(**SERVED, **case)["served"]["error"]
        assert refused.startswith("MissError"), case
        assert reason in refused, case


@pytest.mark.skipif(torch.version.cuda is None, reason="torch for a GPU brings cuBLASLt")
def test_cublaslt_takes_the_descriptors() -> None:
    """Torch's own library, which needs no GPU for them, takes each attribute in its size."""
    library, made = CDLL(str(blas.LIBRARY)), object.__new__(blas.Library)
    functions = {name: library[f"cublasLt{name}"] for name in blas._FUNCTIONS}
    for name, function in functions.items():
        function.argtypes = [blas._LETTERS[letter] for letter in blas._FUNCTIONS[name]]
    made._functions = functions
    lies = [((5, 64), (64, 1)), ((64, 32), (1, 64)), ((5, 32), (32, 1)), ((32,), (1,))]
    for dtype in (torch.bfloat16, torch.float16):
        assert len(made.describe(blas.Product.of({dtype}, *lies))) == 5
    answer = blas.Answer()
    for place, (number, size) in enumerate(blas._CONFIG.values()):
        if place:  # the id is that of the answer
            words = (number, byref(c_uint64(place)), size)
            made.call("MatmulAlgoConfigSetAttribute", byref(answer), *words)
    assert re.findall("[0-9]+", made.config_of(answer)) == [*"012345678"]
