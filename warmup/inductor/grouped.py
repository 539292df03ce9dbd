"""`GroupedProducts`: inductor's selection for ``_grouped_mm``; row kind ``grouped_mm``.

A layer with experts multiplies the rows of each expert by the expert's weights in one call. Which
rows are whose, the tensor ``offs`` says at run time. Choices are timed with rows that a router sent
to one group or another at random. Max-autotune times groups of equal size (kernel/mm_grouped.py,
`create_offsets`), which often fill whole tiles, and hide what a kernel loses where they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor.kernel.mm_grouped import triton_grouped_mm_template

from warmup.core.errors import ProblemError
from warmup.core.roofline import dtype_name
from warmup.inductor.gemm.key import layout_of_operand
from warmup.inductor.selections import SelectionChoices, TensorMakers, random_factors
from warmup.inductor.versions import Version
from warmup.keys.grouped import OF_EACH_GROUP, GroupedProblem, Over, ends_of_groups
from warmup.keys.question import Answers

_OFFSETS: Final = 2  # position among the inputs
_OF_RANKS: Final = {
    (2 + ("a" in names), 2 + ("b" in names)): over for over, names in OF_EACH_GROUP.items()
}


class GroupedProducts:
    """Products of groups of rows, by the library or a template (kernel/mm_grouped.py)."""

    name: Final = "grouped_mm"
    templates: Final[Mapping[str, Any]] = {
        f"triton_{triton_grouped_mm_template.name}": triton_grouped_mm_template
    }

    def is_kept(self, searched: frozenset[str]) -> bool:
        """Return whether the build measured such products."""
        return "grouped_mm" in searched

    def describe(
        self, _choices: Sequence[Any], inputs: Sequence[Any], layout: Any
    ) -> GroupedProblem:
        """Return the problem of the grouped product of *inputs*.

        Raises:
            ProblemError: a size is a range.
        """
        a, b = inputs[:2]
        try:
            sizes = [[int(size) for size in one.get_size()] for one in inputs]
            _ = [int(size) for size in layout.size]
        except TypeError as error:
            raise ProblemError(f"a size of the grouped product is a range: {error}") from error
        over = _OF_RANKS[len(sizes[0]), len(sizes[1])]
        groups = sizes[0][0] if over is Over.NOTHING else sizes[_OFFSETS][0]
        return GroupedProblem(
            groups=groups,
            over=over,
            m=sizes[0][-2],
            n=sizes[1][-1],
            k=sizes[0][-1],
            dtype=dtype_name(a.get_dtype()),
            a=layout_of_operand(a),
            b=layout_of_operand(b),
            out=dtype_name(layout.dtype),
        )

    def tensors_for(self, inputs: Sequence[Any], makers: TensorMakers) -> list[torch.Tensor]:
        """Return two random factors and, where groups have offsets, those.

        Groups of rows are as a router makes them. Those of columns and of factors, whose offsets
        must be aligned, are inductor's, of about the same size.
        """
        a, b = inputs[:2]
        tensors = random_factors(inputs, int(a.get_size()[-1]))
        if len(inputs) == _OFFSETS:
            return tensors
        offsets = inputs[_OFFSETS]
        if _OF_RANKS[len(a.get_size()), len(b.get_size())] is not Over.M:
            return [*tensors, makers[_OFFSETS](offsets)]
        ends = ends_of_groups(int(a.get_size()[0]), int(offsets.get_size()[0]))
        return [*tensors, _offsets_like(offsets, ends)]


def _offsets_like(operand: Any, ends: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ends, dtype=operand.get_dtype(), device=operand.get_device())


def grouped_choices(version: Version, answers: Answers) -> SelectionChoices:
    """Return the hooks of the row kind ``grouped_mm``."""
    return SelectionChoices(GroupedProducts(), version, answers)
