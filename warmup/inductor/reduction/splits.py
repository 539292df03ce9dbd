"""`ReductionSplits`: the hooks of the row kind ``split``, for reductions made in several kernels.

A reduction of few long rows has too few blocks for a device. Inductor then makes partial results in
parts of the rows, and reduces these in a second kernel. Whether, and into how many parts, it
decides by a rule when it lowers the reduction (`ir.Reduction.num_splits`). A row gives another
number; the rule alone decides where it does not split, and about sizes that are ranges.

The parts are lowered by the same function, as reductions of other sizes. With fewer parts than the
rule's it would split them again: then it does not, so that a number of parts means two kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor.ir import Reduction
from torch.fx import Node

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.core.trial import Region
from warmup.inductor.gemm.key import current_node
from warmup.inductor.gemm.region_members import is_read_again, is_reduction, tensors_of
from warmup.inductor.gemm.regions import region_of_reduction
from warmup.inductor.gemm.sizes import sizes_of
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.question import Answers, RegionQuestion
from warmup.keys.split import SplitProblem, parts_of, split_into

_SCAN: Final = "scan"
# In the meta of a node: rows and elements of a row of the parts that a row of the table asks for.
_META_OF_PARTS: Final = "warmup_parts"
_NAMES: Final = (  # of the parameters of `num_splits`, which callers pass either way
    *("device", "dst_dtype", "src_dtype", "inner_fn", "ranges", "reduction_ranges"),
    *("reduction_type", "reduction_numel", "input_node"),
)


class ReductionSplits(Hooks):
    """Answers into how many parts a reduction is split from *answers* while attached."""

    def __init__(self, _version: Version, answers: Answers) -> None:
        self._answers = answers

    def attach(self, patches: Patches) -> None:
        """Put the hook in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(Reduction, "num_splits", self._wrap)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def num_splits(*args: Any, **kwargs: Any) -> Any:
            hint, parts = original(*args, **kwargs)
            if not self._active or "split" not in self._answers.searches or not _is_split(parts):
                return hint, parts
            node, given = current_node(), {**dict(zip(_NAMES, args, strict=False)), **kwargs}
            if node is not None and node.meta.get(_META_OF_PARTS) == _sizes(given):
                return hint, 1
            region = _region_of(node, given)
            if node is None or region is None:
                return hint, parts
            problem = _problem_of(node, region, given, hint, parts)
            chosen = self._choose(problem, region)
            if chosen != parts:
                node.meta[_META_OF_PARTS] = problem.x * chosen, math.ceil(problem.r / chosen)
            return hint, chosen

        return num_splits

    def _choose(self, problem: SplitProblem, region: Region) -> int:
        """Return the number of parts that is compiled, and report where it comes from."""
        by_rule = problem.rule
        try:
            key = problem.key
        except ProblemError as error:
            reason = f"split ({error})"
            self._answers.miss(reason, MissReason.NOT_DESCRIBED, str(split_into(by_rule)))
            return by_rule
        answer = self._answers.find(key)
        if isinstance(answer, Winner):
            parts = parts_of(answer, problem.r)
            if parts is not None:
                self._answers.hit(key, answer)
                return parts
            answer = MissReason.CHOICE_REJECTED
        if not self._answers.tunes:
            self._answers.miss(key, answer, str(split_into(by_rule)))
            return by_rule
        asked = RegionQuestion(key, problem.ways, region, frozenset({key}))
        measured = self._answers.measure_region(asked)
        return by_rule if measured is None else parts_of(measured, problem.r) or by_rule


def _is_split(parts: Any) -> bool:
    """Whether inductor's rule splits; -1 takes the parts of an earlier reduction."""
    return isinstance(parts, int) and parts > 1


def _region_of(node: Node | None, given: Mapping[str, Any]) -> Region | None:
    """Return the region of *node* if *given* describes its reduction, of fixed sizes, not parts.

    None too where plain values cannot describe the region: a build could not measure it.
    """
    if node is None or given["reduction_type"] == _SCAN or not is_reduction(node):
        return None
    x, r = _sizes(given)
    operands, result = tensors_of(node), node.meta.get("val")
    made = result[0] if isinstance(result, tuple | list) else result
    if not operands or not isinstance(made, torch.Tensor) or x is None or r is None:
        return None
    sizes = sizes_of(operands[0])
    is_own = sizes is not None and x * r == math.prod(sizes) and x == made.numel()
    is_float = given["src_dtype"].is_floating_point
    return region_of_reduction(node) if is_own and is_float else None


def _sizes(given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the rows and the elements of a row in *given*; None for what is no number."""
    x, r = (_product(given[name]) for name in ("ranges", "reduction_ranges"))
    return x, r


def _product(sizes: Sequence[Any]) -> int | None:
    try:
        return math.prod(int(size) for size in sizes)
    except TypeError:  # a range
        return None


def _problem_of(
    node: Node, region: Region, given: Mapping[str, Any], hint: Any, by_rule: int
) -> SplitProblem:
    """Return the problem of *node*, whose sizes are numbers."""
    x, r = _sizes(given)
    assert x is not None
    assert r is not None
    read = {dtype_name(one.dtype) for one in region.inputs if math.prod(one.sizes) == x * r}
    return SplitProblem(
        op=str(given["reduction_type"]),
        x=x,
        r=r,
        dtype=dtype_name(given["src_dtype"]),
        out=dtype_name(given["dst_dtype"]),
        reads=sorted(read),
        hint=hint.name.lower(),
        rule=by_rule,
        is_read_again=is_read_again(node),
    )
