"""Modules rebuilt from keys of grouped products: their factors, offsets and results."""

from __future__ import annotations

import pytest
import torch

from warmup.core.errors import ProblemError
from warmup.keys.grouped import Over
from warmup.keys.text import parse_grouped
from warmup.models.rebuilt import ends_for, factors_of, rebuild

CPU = torch.device("cpu")
EXPERTS = "grouped_mm groups=4 over=m m=64 n=32 k=16 bf16 a=row b=col out=bf16"


def test_a_key_is_parsed_to_the_problem_that_spells_it() -> None:
    """For each dim that groups may divide, and with gaps in a factor."""
    for over in Over:
        key = EXPERTS.replace("over=m", f"over={over}").replace("a=row", "a=row/24")
        assert parse_grouped(key).key == key


def test_factors_have_the_dims_that_groups_leave() -> None:
    """A factor without the divided size has a matrix for each group; offsets end at that size."""
    for over, a, b, ends in (
        ("m", (64, 16), (4, 16, 32), 64),
        ("k", (64, 16), (16, 32), 16),
        ("n", (4, 64, 16), (16, 32), 32),
        ("nothing", (4, 64, 16), (4, 16, 32), None),
    ):
        problem = parse_grouped(EXPERTS.replace("over=m", f"over={over}"))
        left, right = (factor.make(CPU) for factor in factors_of(problem))
        assert (tuple(left.shape), tuple(right.shape)) == (a, b), (over, a, b, ends)
        assert right.stride()[-2:] == (1, 16), (over, a, b, ends)
        found = ends_for(problem)
        assert found == () if ends is None else (len(found), found[-1]) == (4, ends), (
            over,
            a,
            b,
            ends,
        )
        if over in ("k", "n"):
            assert all(end % 8 == 0 for end in found), (over, a, b, ends)


def test_the_module_multiplies_each_group_by_its_weights() -> None:
    rebuilt = rebuild(EXPERTS, CPU)
    x, weights, ends = rebuilt.model.example_inputs()
    result = rebuilt.model.module(x, weights, ends)
    start, parts = 0, []
    for group, end in enumerate(ends.tolist()):
        parts.append(x[start:end] @ weights[group])
        start = end
    torch.testing.assert_close(result, torch.cat(parts), rtol=2e-2, atol=2e-2)


def test_a_result_of_another_dtype_is_refused() -> None:
    """Torch has none yet; the reason is in the message."""
    with pytest.raises(ProblemError, match="a result in f32"):
        rebuild(EXPERTS.replace("out=bf16", "out=f32"), CPU)
