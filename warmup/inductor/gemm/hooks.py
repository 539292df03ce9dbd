"""`GemmChoices`: the hooks of the row kind ``gemm``, which answer inductor's GEMM selections.

All hooks are on classes, so that they work in every thread:

- Where candidates are listed: see listing.py.
- ``AlgorithmSelectorCache.__call__`` selects: the hook reduces its list to the row's choice or the
  fallback and reports the hit or miss.
- What measures, in a build: see own_measurements.py.
- ``InductorChoices.can_fuse`` and ``Scheduler.codegen``: see fusion.py.
- ``CppTemplateKernel.render`` and the parsers that it calls: see cpp_sources.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from torch._inductor.choices import InductorChoices
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V

from warmup.core.errors import ProblemError
from warmup.core.method import Search
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.inductor.gemm.choices import (
    choice_of,
    generate_deferred,
    identify,
    library_or_first,
    post_op_of,
    with_library,
)
from warmup.inductor.gemm.cpp_sources import CppSources, unmeasured
from warmup.inductor.gemm.fusion import Fusions
from warmup.inductor.gemm.key import current_node, describe
from warmup.inductor.gemm.listing import CandidateLists
from warmup.inductor.gemm.question import question_of
from warmup.inductor.layouts import expect_padding
from warmup.inductor.options import tuning_is_on
from warmup.inductor.own_measurements import OwnMeasurements
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.gemm import COVERED, CPU_LINEAR, VIA_CHOICES, GemmProblem
from warmup.keys.question import Answers
from warmup.keys.registry import covers

_LEFT_OUT: Final = "inductor could not compile this candidate and left it out"


@dataclass(slots=True)
class _TunedSelection:
    """The selection that this thread is tuning, and its winner once it was measured."""

    problem: GemmProblem
    choices: list[Any]
    searched: SearchCounts
    winner: Winner | None = None


class GemmChoices(Hooks):
    """Answers GEMM selections from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        self._answers = answers
        self._measurements = OwnMeasurements()
        self._lists = CandidateLists(version, answers)
        self._fusions = Fusions(version, answers)

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        expect_padding(patches)
        self._lists.attach(patches)
        patches.wrap(AlgorithmSelectorCache, "__call__", self._wrap_select, with_library)
        self._measurements.attach(patches)
        self._fusions.attach(patches)
        CppSources().attach(patches)

    def _handles(self, name: str) -> bool:
        return self._active and name in COVERED and tuning_is_on()

    # -- the decision --------------------------------------------------------------------------

    def _report_other_handler(self) -> None:
        self._answers.contradicted(
            "choices handler",
            InductorChoices.__name__,
            type(V.choices).__name__,
            "let one of the two choose: remove the handler, or this table",
        )

    def _wrap_select(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def select(
            cache: Any,
            name: str,
            choices: list[Any],
            input_nodes: Any,
            layout: Any,
            *args: Any,
            **kw: Any,
        ) -> Any:
            def proceed(chosen: list[Any]) -> Any:
                return original(cache, name, chosen, input_nodes, layout, *args, **kw)

            if not self._handles(name):
                return proceed(self._choices_without_rows(name, choices))
            notes = self._lists.take_notes()
            # A handler that lists candidates without its base class decides before any row can:
            # torch's lookup table does (torch/_inductor/lookup_table/choices.py).
            is_listed_elsewhere = (
                name in VIA_CHOICES
                and not notes.was_asked
                and type(V.choices) is not InductorChoices
            )
            try:
                post_op = post_op_of(choices) if name in CPU_LINEAR else None
                problem = describe(name, list(input_nodes), layout, post_op)
                key = problem.key
            except ProblemError:
                problem, key = None, None
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            if isinstance(answer, Winner):
                with unmeasured():
                    chosen = choice_of(choices, answer)
                if chosen is not None:
                    result = proceed([chosen])
                    self._fusions.decide(result, str(key), answer)
                    self._answers.hit(str(key), answer)
                    return result
                answer = notes.rejected or MissReason.TEMPLATE_ABSENT
            is_single = len(choices) + notes.dropped <= 1
            if is_single and (self._answers.tunes or not is_listed_elsewhere):
                return proceed(generate_deferred(choices))  # a single choice is no decision
            if is_listed_elsewhere:
                self._report_other_handler()
            if self._answers.tunes and problem is not None:
                kw["return_multi_template"] = False
                ready = generate_deferred(choices)
                searched = notes.searched or SearchCounts(search=Search.DEFAULT, listed=0)
                return self._tune(
                    _TunedSelection(problem, ready, searched.completed(len(ready))), proceed
                )
            fallback = library_or_first(name, choices)
            self._answers.miss(key or _undescribed(name), answer, str(identify(fallback)))
            return proceed([fallback])

        return select

    def _choices_without_rows(self, name: str, choices: list[Any]) -> list[Any]:
        """Return what is offered of a selection that is not this kind's.

        It is uncovered where max-autotune would measure: where no row kind has the selection, and
        inductor lists several choices for it under the table's options. A single choice is none.
        """
        site = f"select:{name}"
        if self._active and len(choices) > 1 and tuning_is_on() and not covers(site):
            default = library_or_first(name, choices)
            if not self._answers.measures(site, str(identify(default))):
                return [default]
        return generate_deferred(choices)

    # -- measuring -----------------------------------------------------------------------------

    def _tune(self, selection: _TunedSelection, proceed: Callable[[list[Any]], Any]) -> Any:
        with self._measurements.chosen_by(partial(self._measure, selection)):
            selected = proceed(selection.choices)
        if selection.winner is not None:
            self._fusions.decide(selected, selection.problem.key, selection.winner)
        return selected

    def _measure(
        self,
        tuning: _TunedSelection,
        ready: list[Any],
        input_nodes: Any,
        layout: Any,
        input_gen_fns: Any,
    ) -> Any:
        """Return the winner of *tuning* among the compiled choices *ready*, and note it."""
        question = question_of(tuning.problem, ready, input_nodes, layout, input_gen_fns)
        left_out = (choice for choice in tuning.choices if choice not in ready)
        identified = filter(None, map(identify, left_out))
        uncompiled: dict[Winner, str] = dict.fromkeys(identified, _LEFT_OUT)
        winner = self._answers.measure(
            replace(
                question,
                uncompiled={**question.uncompiled, **uncompiled},
                library=identify(library_or_first(tuning.problem.op, tuning.choices)),
                searched=tuning.searched,
            )
        )
        tuning.winner = winner
        wanted = None if winner is None else winner.choice
        chosen = [choice for choice in ready if identify(choice) == wanted]
        return chosen[0] if chosen else library_or_first(tuning.problem.op, ready)


def _undescribed(name: str) -> str:
    node = current_node()
    return f"{name} ({node.target if node is not None else 'outside a graph'})"
