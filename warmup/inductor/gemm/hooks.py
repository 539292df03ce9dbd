"""`GemmChoices`: the hooks of the row kind ``gemm``, which answer inductor's GEMM selections.

All hooks are on classes, so that they work in every thread:

- ``InductorChoices._finalize_template_configs`` lists candidates before their code is generated:
  the hook drops all but the winner and the library call, or adds candidates to be measured.
- ``CppGemmTemplate.add_choices`` generates code and packs weights: the hook defers the call.
- ``AlgorithmSelectorCache.__call__`` selects: the hook reduces its list to the row's choice or the
  fallback and reports the hit or miss.
- ``AlgorithmSelectorCache.make_benchmark_fn`` measures: in a build the hook asks for the winner.
- ``InductorChoices.can_fuse`` and ``Scheduler.codegen``: see fusion.py.
- ``CppTemplateKernel.render`` and the parsers that it calls: see cpp_sources.py.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PersistentCache
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelChoice
from torch._inductor.virtualized import V

from warmup.core.errors import ProblemError
from warmup.core.method import Search
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.inductor.gemm.choices import (
    DeferredCppChoices,
    choice_of,
    force_choice,
    generate_deferred,
    identify,
    library_or_first,
    post_op_of,
)
from warmup.inductor.gemm.cpp_sources import CppSources, unmeasured
from warmup.inductor.gemm.fusion import Fusions
from warmup.inductor.gemm.key import current_node, describe
from warmup.inductor.gemm.question import question_of
from warmup.inductor.gemm.search import Selection, search, unlisted_candidates
from warmup.inductor.layouts import expect_padding
from warmup.inductor.options import option_value, tuning_is_on
from warmup.inductor.patches import Patches
from warmup.inductor.versions import Version
from warmup.keys.gemm import COVERED, CPU_LINEAR, LIBRARY_ONLY, VIA_CHOICES, GemmProblem
from warmup.keys.question import Answers

_LEFT_OUT: Final = "inductor could not compile this candidate and left it out"


@dataclass(slots=True)
class _TunedSelection:
    """The selection that this thread is tuning, and its winner once it was measured."""

    problem: GemmProblem
    choices: list[Any]
    searched: SearchCounts
    winner: Winner | None = None


class GemmChoices:
    """Answers GEMM selections from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        self._version = version
        self._answers = answers
        self._active = True
        self._local = threading.local()
        self._fusions = Fusions(version, answers)

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        expect_padding(patches)
        patches.wrap(InductorChoices, "_finalize_template_configs", self._wrap_finalize)
        patches.wrap(CppGemmTemplate, "add_choices", self._wrap_add_choices)
        patches.wrap(AlgorithmSelectorCache, "__call__", self._wrap_select)
        patches.wrap(AlgorithmSelectorCache, "make_benchmark_fn", self._wrap_benchmark)
        patches.wrap(PersistentCache, "lookup", self._wrap_cache_lookup)
        self._fusions.attach(patches)
        CppSources().attach(patches)

    def _deactivate(self) -> None:
        self._active = False

    def _handles(self, name: str) -> bool:
        return self._active and name in COVERED and tuning_is_on()

    # -- listing candidates --------------------------------------------------------------------

    def _wrap_finalize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def finalize(
            handler: Any,
            template_choices: dict[str, Iterator[Any]],
            kernel_inputs: Any,
            templates: list[Any],
            op_name: str,
            kwarg_overrides: Any = None,
        ) -> Any:
            def list_all() -> Any:
                return original(
                    handler, template_choices, kernel_inputs, templates, op_name, kwarg_overrides
                )

            if op_name not in VIA_CHOICES or not self._handles(op_name):
                return list_all()
            self._local.asked = True
            try:
                key = describe(op_name, kernel_inputs.nodes(), kernel_inputs.output_layout()).key
            except ProblemError:
                key = None
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            overrides = kwarg_overrides or {}
            selection = Selection(
                self._version, handler, kernel_inputs, templates, op_name, overrides
            )
            if isinstance(answer, MissReason) and self._answers.tunes:
                return self._widen(selection, list_all(), key)
            offered = {**template_choices, **unlisted_candidates(selection)}
            kept = self._keep_winner_and_library(offered, templates, answer)
            if kept or "ATEN" in option_value("max_autotune_gemm_backends"):
                return kept
            # The caller switched the library off, and a selection without choices is an error:
            # list everything anew, since the generators above are partly consumed.
            template_choices = {
                template.uid: handler.get_ktc(
                    kernel_inputs, template, op_name, overrides.get(template.uid, {})
                )
                for template in templates
            }
            return list_all()

        return finalize

    def _widen(self, selection: Selection, listed: list[Any], key: str | None) -> list[Any]:
        """Return what inductor *listed* and what the search adds, and record how it was searched.

        A selection may be listed in parts: from torch 2.12 on addmm lists its templates last.
        """
        mode = Search.DEFAULT if key is None else self._answers.search
        near = () if key is None or mode is Search.DEFAULT else self._answers.neighbours(key)
        result = search(selection, mode, listed, near)
        before = getattr(self._local, "searched", None)
        self._local.searched = result.searched if before is None else before + result.searched
        return [*listed, *result.choices]

    def _keep_winner_and_library(
        self,
        template_choices: Mapping[str, Iterator[Any]],
        templates: list[Any],
        answer: Winner | MissReason,
    ) -> list[Any]:
        """Return the library call and the winner's choice, and record what was dropped."""
        library = {t.uid for t in templates if isinstance(t, ExternKernelChoice)}
        kept: list[Any] = []
        for uid, candidates in template_choices.items():
            first = next(candidates, None)  # lazy: this generates no code
            if first is None:
                continue
            if isinstance(answer, Winner) and uid == answer.uid and uid not in library:
                forced = force_choice(self._version, answer, first)
                if isinstance(forced, MissReason):
                    self._record_dropped(rejected=forced)
                else:
                    kept.append(forced)
            elif uid in library:
                kept.append(first)
            else:
                self._record_dropped(1)
        return kept

    def _record_dropped(self, dropped: int = 0, *, rejected: MissReason | None = None) -> None:
        """Record dropped candidates for the next selection of this thread."""
        self._local.dropped = getattr(self._local, "dropped", 0) + dropped
        if rejected is not None:
            self._local.dropped += 1
            self._local.rejected = rejected

    def _take_records(self) -> tuple[int, MissReason | None, SearchCounts | None, bool]:
        local = self._local
        records = (
            getattr(local, "dropped", 0),
            getattr(local, "rejected", None),
            getattr(local, "searched", None),
            getattr(local, "asked", False),
        )
        local.dropped, local.rejected, local.searched, local.asked = 0, None, None, False
        return records

    def _report_other_handler(self) -> None:
        self._answers.contradicted(
            "choices handler",
            InductorChoices.__name__,
            type(V.choices).__name__,
            "let one of the two choose: remove the handler, or this table",
        )

    def _wrap_add_choices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_choices(cls: Any, choices: list[Any], *args: Any, **kwargs: Any) -> Any:
            if not self._active or not tuning_is_on():
                return original(cls, choices, *args, **kwargs)
            choices.append(DeferredCppChoices(lambda into: original(cls, into, *args, **kwargs)))
            return None

        return add_choices

    # -- the decision --------------------------------------------------------------------------

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
                ready = generate_deferred(choices)
                takes_library = self._active and name in LIBRARY_ONLY and tuning_is_on()
                return proceed([library_or_first(name, ready)] if takes_library else ready)
            dropped, rejected, searched, asked = self._take_records()
            # A handler that lists candidates without its base class decides before any row can:
            # torch's lookup table does (torch/_inductor/lookup_table/choices.py).
            is_listed_elsewhere = (
                name in VIA_CHOICES and not asked and type(V.choices) is not InductorChoices
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
                answer = rejected or MissReason.TEMPLATE_ABSENT
            is_single = len(choices) + dropped <= 1
            if is_single and (self._answers.tunes or not is_listed_elsewhere):
                return proceed(generate_deferred(choices))  # a single choice is no decision
            if is_listed_elsewhere:
                self._report_other_handler()
            if self._answers.tunes and problem is not None:
                kw["return_multi_template"] = False
                ready = generate_deferred(choices)
                searched = searched or SearchCounts(search=Search.DEFAULT, listed=0)
                return self._tune(
                    _TunedSelection(problem, ready, searched.completed(len(ready))), proceed
                )
            fallback = library_or_first(name, choices)
            self._answers.miss(key or _undescribed(name), answer, str(identify(fallback)))
            return proceed([fallback])

        return select

    # -- measuring -----------------------------------------------------------------------------

    def _tune(self, selection: _TunedSelection, proceed: Callable[[list[Any]], Any]) -> Any:
        self._local.tuning = selection
        try:
            selected = proceed(selection.choices)
        finally:
            self._local.tuning = None
        if selection.winner is not None:
            self._fusions.decide(selected, selection.problem.key, selection.winner)
        return selected

    def _wrap_cache_lookup(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(
            cache: Any, choices: list[Any], op: Any, inputs: Any, benchmark: Any, **kw: Any
        ) -> Any:
            if not self._active or getattr(self._local, "tuning", None) is None:
                return original(cache, choices, op, inputs, benchmark, **kw)
            # Inductor's cache ignores the epilogue; a row depends on it.
            return {} if benchmark is None else benchmark(choices)

        return lookup

    def _wrap_benchmark(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make_benchmark_fn(
            cls: Any,
            choices: list[Any],
            input_nodes: Any,
            layout: Any,
            input_gen_fns: Any,
            *args: Any,
            **kw: Any,
        ) -> Any:
            tuning: _TunedSelection | None = getattr(self._local, "tuning", None)
            if not self._active or tuning is None:
                return original(cls, choices, input_nodes, layout, input_gen_fns, *args, **kw)

            def measure(ready: list[Any]) -> dict[Any, float]:
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
                best = chosen[0] if chosen else library_or_first(tuning.problem.op, ready)
                # Inductor selects the least time; the measured times are in the row's evidence.
                return {choice: 0.0 if choice is best else math.inf for choice in ready}

            return measure

        return make_benchmark_fn


def _undescribed(name: str) -> str:
    node = current_node()
    return f"{name} ({node.target if node is not None else 'outside a graph'})"
