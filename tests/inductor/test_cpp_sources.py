"""How often the source of a C++ template is written, and that the code stays the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "cpp_sources.py"
BF16 = {"layers": 8, "sizes": [16, 48], "dtype": "bfloat16"}  # products of mkldnn's patterns
F32 = {"layers": 2, "sizes": [16], "dtype": "float32", "ranged": True}  # products of MKL
MIXED = {"layers": 4, "sizes": [16], "dtype": "float32", "mixed": True}
PRODUCTS = 8 * 2 * 2  # by layers and sizes
PROBLEMS = 2 * 2  # by sizes

Answers = list[dict[str, Any]]


def _ask(run_once: Callable[..., tuple[Path, str]], way: str, variables: dict[str, str]) -> Any:
    words = (str(PROGRAM), way, json.dumps([BF16, F32, MIXED]))
    _, said = run_once(f"cpp-sources-{way}", *words, **variables)
    return json.loads(said.splitlines()[-1])


@pytest.fixture(scope="module")
def by_warmup(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Answers:
    """The layers in bf16, two in f32 along a range, and four mixed, under an attached table."""
    answers: Answers = _ask(run_once, "warmup", variables)
    return answers


@pytest.fixture(scope="module")
def by_torch(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Answers:
    """The same under the same table, with torch's own functions where warmup replaces them."""
    answers: Answers = _ask(run_once, "torch", variables)
    return answers


def test_the_generated_code_is_the_same(by_warmup: Answers, by_torch: Answers) -> None:
    """Wrapper and kernels are byte-equal in each case, but for the addresses of the weights."""
    for ours, torchs in zip(by_warmup, by_torch, strict=True):
        assert ours["code"] == torchs["code"]
        assert all("_micro_gemm" in code for code in ours["code"])


def test_sources_are_written_once_and_for_no_benchmark(by_warmup: Answers) -> None:
    counts = by_warmup[0]["counts"]
    assert by_warmup[0]["hits"] == PRODUCTS
    assert (counts["candidates"], counts["sources"]) == (PRODUCTS, PROBLEMS)
    # Along a range, too: two layers of two products each need two sources.
    assert by_warmup[1]["counts"]["sources"] == PROBLEMS // 2
    # Of four layers, every other one scales its inner features: two and one sources, not two.
    counts = by_warmup[2]["counts"]
    assert (counts["candidates"], counts["sources"]) == (8, 3)


def test_torch_writes_each_source_twice(by_torch: Answers) -> None:
    """The control: without the hooks the counter sees a second source for each product."""
    counts = by_torch[0]["counts"]
    assert (counts["candidates"], counts["sources"]) == (PRODUCTS, 2 * PRODUCTS)


def test_the_parts_of_sources_are_parsed_once_in_a_process(
    by_warmup: Answers, by_torch: Answers
) -> None:
    """Fewer templates than products are parsed, where torch parses some for every source."""
    parsed = [by_warmup[0]["counts"][what] for what in ("templates", "expressions")]
    again = [by_torch[0]["counts"][what] for what in ("templates", "expressions")]
    assert max(parsed) < PRODUCTS
    assert min(again) > 2 * PRODUCTS


def test_torchs_own_functions_are_put_back(by_warmup: Answers) -> None:
    """After the table is detached, all functions that write sources are torch's own."""
    assert by_warmup[0]["is_restored"]
