"""`ReductionLoops`: the hooks of the row kind ``reduction``, for persistent and looped kernels.

Inductor decides by a rule, before there is a kernel: up to 1024 elements a row, or 64 where rows do
not lie together, the kernel holds whole rows, else it loops (choices.py,
`should_use_persistent_reduction`). ``TritonScheduling.create_kernel_choices`` makes the kernel, and
takes another decision as an argument. Inductor's own wider search, ``triton.multi_kernel``, goes 16
times as far with persistent kernels: so far there is a choice, and beyond the kernel loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch._inductor import config as inductor_config
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.virtualized import V

from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.inductor.listing import is_listing
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.reduction.features import key_of
from warmup.inductor.reduction.kernels import search_of, send_ahead
from warmup.inductor.versions import Version
from warmup.keys.question import Answers
from warmup.keys.reduction import LOOPED, PERSISTENT

# Arguments of kernels for which inductor decided already: sorts, and two reductions in one kernel.
_DECIDED: Final = frozenset({"override_persistent_reduction", "override_cooperative_reduction"})


class ReductionLoops(Hooks):
    """Answers persistent or looped from *answers* while attached."""

    def __init__(self, _version: Version, answers: Answers) -> None:
        self._answers = answers

    def attach(self, patches: Patches) -> None:
        """Put the hook in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(TritonScheduling, "create_kernel_choices", self._wrap)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_kernel_choices(
            scheduling: Any,
            kernel_features: Any,
            kernel_args: list[Any],
            kernel_kwargs: dict[str, Any],
        ) -> Any:
            arguments = dict(kernel_kwargs)
            made = original(scheduling, kernel_features, kernel_args, arguments)
            is_asked = self._active and "reduction" in self._answers.searches
            if not is_asked or not _leaves_choice(kernel_features, made, arguments):
                return made

            def create(way: Winner) -> Any:
                forced = {"override_persistent_reduction": way == PERSISTENT}
                return original(
                    scheduling, kernel_features, kernel_args, {**kernel_kwargs, **forced}
                )

            by_rule = PERSISTENT if made[0].persistent_reduction else LOOPED
            way = self._choose(scheduling, kernel_features, by_rule, create)
            return made if way == by_rule else create(way)

        return create_kernel_choices

    def _choose(
        self, scheduling: Any, features: Any, by_rule: Winner, create: Callable[[Winner], Any]
    ) -> Winner:
        """Return the way that is compiled, and report where it comes from."""
        try:
            key = key_of(features)
        except ProblemError as error:
            self._answers.miss(f"reduction ({error})", MissReason.NOT_DESCRIBED, str(by_rule))
            return by_rule
        answer = self._answers.find(key)
        if isinstance(answer, Winner):
            self._answers.hit(key, answer)
            return answer
        if self._answers.tunes:
            ways = by_rule, LOOPED if by_rule == PERSISTENT else PERSISTENT
            if is_listing():
                send_ahead(scheduling, features, ways, create)
                return by_rule
            search = search_of(self._answers, scheduling, features, ways, create)
            return self._answers.measure_search(key, search) or by_rule
        self._answers.miss(key, answer, str(by_rule))
        return by_rule


def _leaves_choice(features: Any, made: Sequence[Any], arguments: Mapping[str, Any]) -> bool:
    """Whether another kernel than *made*, by *arguments* as inductor left them, is possible."""
    if not features.is_reduction() or _DECIDED & arguments.keys() or len(made) != 1:
        return False
    if made[0].cooperative_reduction or any(features.contains_op(op) for op in ("scan", "dot")):
        return False
    if arguments.get("mix_order_reduction") or not features.reduction_numel.is_number:
        return False
    with inductor_config.patch({"triton.multi_kernel": 1}):
        return bool(
            V.choices.should_use_persistent_reduction(features, cooperative_reduction=False)
        )
