"""Plans of graphs for the stated H100: what is launched, in which order, and for which decision."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warmup.core.roofline import PlannedBy

Ask = Callable[..., dict[str, Any]]
ROWS, WIDTH, WIDER = 8 * 1370, 768, 3072  # of tests/programs/cuda_fusion.py
LAUNCHED = re.compile(r"(triton_\w+)\.run|extern_kernels\.(\w+)")


@pytest.fixture(scope="module")
def ask(conversation: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """``ask(case=..., fused=...)``: what inductor generated for the case, and its plan."""
    with conversation("cuda_plans.py", tmp_path_factory.mktemp("plans")) as ask:
        yield ask


def test_a_plan_has_the_launches_of_the_code_in_order(ask: Ask) -> None:
    for fused in ([True, False], [None, None]):
        found = ask(case="mlp", fused=fused)
        launched = [LAUNCHED.match(line) for line in found["launches"]]
        names = [match[1] or match[2] for match in launched if match is not None]
        assert [kernel["name"] for kernel in found["plan"]] == names, fused


def test_templates_have_the_keys_of_their_rows(ask: Ask) -> None:
    """Each matmul's kernel is planned for the key that the table was asked for."""
    found = ask(case="mlp", fused=[True, True])
    templates = [kernel for kernel in found["plan"] if kernel["name"].startswith("triton_tem_")]
    assert [kernel["keys"] for kernel in templates] == [[key] for key in found["keys"]]
    assert {kernel["by"] for kernel in templates} == {PlannedBy.TRITON}


def test_an_embedding_moves_the_rows_that_are_looked_up(ask: Ask) -> None:
    """Not its whole weight, 197 MB, of which a fused norm reads a row for each word."""
    (kernel,) = ask(case="embedding", fused=[])["plan"]
    assert kernel["moved"] == 3 * 2 * ROWS * WIDTH + 8 * ROWS


def test_templates_have_their_work(ask: Ask) -> None:
    """2 m n k operations; operands and results once, with what is fused into the kernel."""
    found = ask(case="mlp", fused=[True, True])
    up, down = (kernel for kernel in found["plan"] if kernel["keys"])
    assert up["flops"] == down["flops"] == 2 * ROWS * WIDTH * WIDER
    tensors = ROWS * WIDTH + WIDTH * WIDER + ROWS * WIDER
    assert (up["moved"], down["moved"]) == (2 * (tensors + WIDER), 2 * (tensors + WIDTH))
