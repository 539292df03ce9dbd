"""`ReductionSplits`: the hooks of the row kind ``split``, for reductions made in several kernels.

A reduction of few long rows has too few blocks for a device. Inductor then makes partial results in
parts of the rows, and reduces these in a second kernel. Whether, and into how many parts, it
decides by a rule when it lowers the reduction (`ir.Reduction.num_splits`). A row gives another
number; the rule alone decides where it does not split, and about sizes that are ranges.

Kernels of the parts are lowered by the same function, as reductions of other sizes: they are
recognised by their sizes, and left to the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._inductor.ir import Reduction
from torch.fx import Node

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.inductor.gemm.key import current_node
from warmup.inductor.gemm.region_members import is_read_again, is_reduction, tensors_of
from warmup.inductor.gemm.regions import region_of_reduction
from warmup.inductor.gemm.sizes import sizes_of
from warmup.inductor.patches import Patches
from warmup.inductor.versions import Version
from warmup.keys.question import Answers, RegionQuestion
from warmup.keys.split import SplitProblem, parts_of, split_into

_SCAN: Final = "scan"
_NAMES: Final = (  # of the parameters of `num_splits`, which callers pass either way
    *("device", "dst_dtype", "src_dtype", "inner_fn", "ranges", "reduction_ranges"),
    *("reduction_type", "reduction_numel", "input_node"),
)


class ReductionSplits:
    """Answers into how many parts a reduction is split from *answers* while attached."""

    def __init__(self, _version: Version, answers: Answers) -> None:
        self._answers = answers
        self._active = True

    def attach(self, patches: Patches) -> None:
        """Put the hook in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(Reduction, "num_splits", self._wrap)

    def _deactivate(self) -> None:
        self._active = False

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def num_splits(*args: Any, **kwargs: Any) -> Any:
            hint, parts = original(*args, **kwargs)
            if not self._active or not self._answers.split_search or not _is_split(parts):
                return hint, parts
            node, given = current_node(), {**dict(zip(_NAMES, args, strict=False)), **kwargs}
            if node is None or not _is_of(node, given):
                return hint, parts
            return hint, self._choose(node, given, hint, int(parts))

        return num_splits

    def _choose(self, node: Node, given: dict[str, Any], hint: Any, by_rule: int) -> int:
        """Return the number of parts that is compiled, and report where it comes from."""
        try:
            problem = _problem_of(node, given, hint, by_rule)
            key = problem.key
        except ProblemError as error:
            self._answers.miss(
                f"split ({error})", MissReason.NOT_DESCRIBED, str(split_into(by_rule))
            )
            return by_rule
        answer = self._answers.find(key)
        if isinstance(answer, Winner):
            parts = parts_of(answer, problem.r)
            if parts is not None:
                self._answers.hit(key, answer)
                return parts
            answer = MissReason.CHOICE_REJECTED
        if self._answers.tunes:
            self._measure(node, problem)
        else:
            self._answers.miss(key, answer, str(split_into(by_rule)))
        return by_rule

    def _measure(self, node: Node, problem: SplitProblem) -> None:
        """Ask for a measurement; a build compiles this graph again when it is done."""
        region = region_of_reduction(node)
        self._answers.measure_region(
            RegionQuestion(
                key=problem.key,
                ways=problem.ways,
                region=region,
                keys_in_region=frozenset() if region is None else frozenset({problem.key}),
                reason="" if region is not None else "what surrounds it cannot be described",
            )
        )


def _is_split(parts: Any) -> bool:
    """Whether inductor's rule splits; -1 takes the parts of an earlier reduction."""
    return isinstance(parts, int) and parts > 1


def _is_of(node: Node, given: dict[str, Any]) -> bool:
    """Whether *given* describes the reduction of *node*, of fixed sizes, and not of its parts."""
    if given["reduction_type"] == _SCAN or not is_reduction(node) or not tensors_of(node):
        return False
    x, r = _product(given["ranges"]), _product(given["reduction_ranges"])
    if x is None or r is None or not given["src_dtype"].is_floating_point:
        return False
    operand, result = tensors_of(node)[0].meta.get("val"), node.meta.get("val")
    made = result[0] if isinstance(result, tuple | list) else result
    if not isinstance(operand, torch.Tensor) or not isinstance(made, torch.Tensor):
        return False
    sizes = sizes_of(tensors_of(node)[0])
    return sizes is not None and x * r == math.prod(sizes) and x == made.numel()


def _product(sizes: Sequence[Any]) -> int | None:
    """Return the product of *sizes*; None where they are not all numbers."""
    try:
        return math.prod(int(size) for size in sizes)
    except TypeError:  # a range
        return None


def _problem_of(node: Node, given: dict[str, Any], hint: Any, by_rule: int) -> SplitProblem:
    """Return the problem of *node*.

    Raises:
        ProblemError: a key cannot describe it.
    """
    try:
        return SplitProblem(
            op=str(given["reduction_type"]),
            x=_product(given["ranges"]) or 0,
            r=_product(given["reduction_ranges"]) or 0,
            dtype=dtype_name(given["src_dtype"]),
            out=dtype_name(given["dst_dtype"]),
            hint=hint.name.lower(),
            rule=by_rule,
            is_read_again=is_read_again(node),
        )
    except (AttributeError, KeyError, ValueError) as error:
        raise ProblemError(f"a reduction that a key cannot describe: {error}") from error
