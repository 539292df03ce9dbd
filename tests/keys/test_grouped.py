"""Keys of grouped products: their text, what is refused, and the work that they name."""

from __future__ import annotations

import pytest

from warmup.core.errors import ProblemError
from warmup.keys.gemm import Dim, Layout
from warmup.keys.grouped import GROUPED, GroupedProblem, Over
from warmup.keys.registry import check_key, kind_of, work_of

EXPERTS = "grouped_mm groups=8 over=m m=1024 n=28672 k=4096 bf16 a=row b=col out=bf16"


def test_a_problem_is_spelled_as_its_key() -> None:
    """Groups and what they divide, sizes, dtypes and layouts, in that order."""
    problem = GroupedProblem(
        groups=8,
        over=Over.M,
        m=1024,
        n=28672,
        k=4096,
        dtype="bf16",
        a=Layout("row"),
        b=Layout("col"),
        out="bf16",
    )
    assert problem.key == EXPERTS
    assert kind_of(EXPERTS) is GROUPED


def test_gaps_in_an_operand_are_in_the_key() -> None:
    """Rows that are further apart than they are long, as of one half of a wider tensor."""
    a = Layout("row", Dim.of(8192))
    problem = GroupedProblem(
        groups=2, over=Over.M, m=64, n=64, k=64, dtype="bf16", a=a, b=Layout("row"), out="bf16"
    )
    assert " a=row/8192 " in problem.key


def test_the_work_is_that_of_all_groups() -> None:
    """A divided size is the sum of all groups', and an operand without it has one part for each."""
    for over, flops, elements in (
        ("m", 2 * 32 * 64 * 16, 32 * 16 + 8 * 16 * 64 + 32 * 64),
        ("k", 2 * 32 * 64 * 16, 32 * 16 + 16 * 64 + 8 * 32 * 64),
        ("n", 2 * 32 * 64 * 16, 8 * 32 * 16 + 16 * 64 + 32 * 64),
        ("nothing", 8 * 2 * 32 * 64 * 16, 8 * (32 * 16 + 16 * 64 + 32 * 64)),
    ):
        work = work_of(f"grouped_mm groups=8 over={over} m=32 n=64 k=16 bf16 a=row b=col out=bf16")
        assert work is not None, (over, flops, elements)
        assert (work.flops, work.moved) == (flops, 2 * elements), (over, flops, elements)


def test_other_text_is_no_key() -> None:
    for key in (
        EXPERTS.replace("over=m", "over=g"),
        EXPERTS.replace("groups=8 ", ""),
        EXPERTS.replace("m=1024", "m=2..1024"),
        f"{EXPERTS} | epilogue=none",
    ):
        with pytest.raises(ProblemError):
            check_key(key)
