"""Row kind ``gemm``: answering inductor's GEMM selection.

Three hooks, all on classes so that every thread sees them:

- ``InductorChoices._finalize_template_configs`` sees the candidates before code is generated for
  them: here everything but the winner and the library call is dropped.
- ``CppGemmTemplate.add_choices`` generates code and packs weights when called: here the call is
  held back until it is known to be wanted.
- ``AlgorithmSelectorCache.__call__`` decides: here the one choice is picked, and one event emitted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelChoice,
    get_algorithm_selector_cache,
)

from warmup.choice import Evidence, Family, MissReason, Row, Timing, Tuned, Winner
from warmup.errors import ProblemError
from warmup.inductor.choices import force, identify, is_library, post_op_of
from warmup.inductor.describe import current_node, describe
from warmup.inductor.options import option_value, tuning_is_on
from warmup.inductor.patches import Patches
from warmup.inductor.port import Answers
from warmup.inductor.tma import tma_candidates
from warmup.inductor.versions import Version
from warmup.problem import COVERED, CPU_LINEAR, LIBRARY_ONLY, VIA_CHOICES

_US_PER_MS = 1000.0


@dataclass(slots=True)
class _HeldBack:
    """A call of ``CppGemmTemplate.add_choices`` that has not happened yet."""

    call: Callable[[list[Any]], Any]

    def generate(self) -> list[Any]:
        choices: list[Any] = []
        self.call(choices)
        return choices


class GemmChoices:
    """Answers GEMM selections from *answers* while its patches are in place."""

    def __init__(self, version: Version, answers: Answers) -> None:
        self._version = version
        self._answers = answers
        self._active = True
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(InductorChoices, "_finalize_template_configs", self._wrap_finalize)
        patches.wrap(CppGemmTemplate, "add_choices", self._wrap_add_choices)
        patches.wrap(AlgorithmSelectorCache, "__call__", self._wrap_select)
        savers = get_algorithm_selector_cache().feedback_saver_fns
        savers.append(self._save_feedback)

        def forget() -> None:
            if self._save_feedback in savers:  # somebody may have cleared the list meanwhile
                savers.remove(self._save_feedback)

        patches.on_restore(forget)

    def _deactivate(self) -> None:
        self._active = False

    def _answers_for(self, name: str) -> bool:
        return self._active and name in COVERED and tuning_is_on()

    # -- before generation ---------------------------------------------------------------------

    def _wrap_finalize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def finalize(
            handler: Any,
            template_choices: dict[str, Iterator[Any]],
            kernel_inputs: Any,
            templates: list[Any],
            op_name: str,
            kwarg_overrides: Any = None,
        ) -> Any:
            def everything() -> Any:
                return original(
                    handler, template_choices, kernel_inputs, templates, op_name, kwarg_overrides
                )

            if op_name not in VIA_CHOICES or not self._answers_for(op_name):
                return everything()
            try:
                key = describe(op_name, kernel_inputs.nodes(), kernel_inputs.output_layout()).key
            except ProblemError:
                key = None
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            extra = tma_candidates(handler, kernel_inputs, templates, op_name)
            if isinstance(answer, MissReason) and self._answers.tunes:
                return [*everything(), *extra]
            if extra:
                template_choices = {**template_choices, extra.uid: iter(extra)}
            kept = self._keep(template_choices, templates, answer)
            if kept or "ATEN" in option_value("max_autotune_gemm_backends"):
                return kept
            # The caller switched the library off, and a selection without choices is an error:
            # start over, since candidates were taken from the generators above.
            overrides = kwarg_overrides or {}
            template_choices = {
                template.uid: handler.get_ktc(
                    kernel_inputs, template, op_name, overrides.get(template.uid, {})
                )
                for template in templates
            }
            return everything()

        return finalize

    def _keep(
        self,
        template_choices: Mapping[str, Iterator[Any]],
        templates: list[Any],
        answer: Winner | MissReason,
    ) -> list[Any]:
        """Return the library call and the winner; note what was dropped and why."""
        library = {t.uid for t in templates if isinstance(t, ExternKernelChoice)}
        kept: list[Any] = []
        for uid, candidates in template_choices.items():
            first = next(candidates, None)  # lazy: no code is generated for it
            if first is None:
                continue
            if isinstance(answer, Winner) and uid == answer.uid and uid not in library:
                forced = force(self._version, answer, first)
                if isinstance(forced, MissReason):
                    self._note(rejected=forced)
                else:
                    kept.append(forced)
            elif uid in library:
                kept.append(first)
            else:
                self._note(dropped=1)
        return kept

    def _note(self, *, dropped: int = 0, rejected: MissReason | None = None) -> None:
        """Remember, for the selection that follows in this thread, what was dropped."""
        self._local.dropped = getattr(self._local, "dropped", 0) + dropped
        if rejected is not None:
            self._local.dropped += 1
            self._local.rejected = rejected

    def _take_notes(self) -> tuple[int, MissReason | None]:
        notes = getattr(self._local, "dropped", 0), getattr(self._local, "rejected", None)
        self._local.dropped, self._local.rejected = 0, None
        return notes

    def _wrap_add_choices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_choices(cls: Any, choices: list[Any], *args: Any, **kwargs: Any) -> Any:
            if not self._active or not tuning_is_on():
                return original(cls, choices, *args, **kwargs)
            choices.append(_HeldBack(lambda into: original(cls, into, *args, **kwargs)))
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

            if not self._answers_for(name):
                ready = _generate(choices)
                declined = self._active and name in LIBRARY_ONLY and tuning_is_on()
                return proceed([_library_or_first(name, ready)] if declined else ready)
            dropped, rejected = self._take_notes()
            try:
                post_op = post_op_of(choices) if name in CPU_LINEAR else None
                key = describe(name, list(input_nodes), layout, post_op).key
            except ProblemError:
                key = None
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            if isinstance(answer, Winner):
                chosen = _matching(choices, answer)
                if chosen is not None:
                    result = proceed([chosen])
                    self._answers.hit(str(key), answer)
                    return result
                answer = rejected or MissReason.TEMPLATE_ABSENT
            if len(choices) + dropped <= 1:
                return proceed(_generate(choices))  # nothing to choose from is no decision
            if self._answers.tunes and key is not None:
                kw["return_multi_template"] = False
                return self._tune(key, _generate(choices), proceed)
            fallback = _library_or_first(name, choices)
            self._answers.miss(key or _undescribed(name), answer, str(identify(fallback)))
            return proceed([fallback])

        return select

    # -- measuring -----------------------------------------------------------------------------

    def _tune(self, key: str, choices: list[Any], proceed: Callable[[list[Any]], Any]) -> Any:
        self._local.timings = None
        result = proceed(choices)
        timings: Mapping[Any, float] | None = self._local.timings
        if timings:
            tuned = _judge(key, choices, timings)
            if tuned is not None:
                self._answers.tuned(tuned)
        return result

    def _save_feedback(self, timings: Mapping[Any, float], *_: Any) -> None:
        self._local.timings = dict(timings)


def _generate(choices: list[Any]) -> list[Any]:
    """Return *choices* with every held-back one generated, in place."""
    generated: list[Any] = []
    for choice in choices:
        generated.extend(choice.generate() if isinstance(choice, _HeldBack) else [choice])
    return generated


def _matching(choices: list[Any], winner: Winner) -> Any | None:
    candidates = choices
    if winner.family is Family.CPP:
        candidates = [c for held in choices if isinstance(held, _HeldBack) for c in held.generate()]
    ready = (choice for choice in candidates if not isinstance(choice, _HeldBack))
    return next((choice for choice in ready if identify(choice) == winner), None)


def _library_or_first(name: str, choices: list[Any]) -> Any:
    """Return the deterministic fallback: what default mode calls, else the first library call.

    Torch 2.11 offers ``bias_addmm`` before the ``addmm`` that default mode calls (kernel/mm.py).
    """
    ready = [choice for choice in choices if not isinstance(choice, _HeldBack)]
    library = [choice for choice in ready if is_library(choice)]
    own = (choice for choice in library if identify(choice) == _library_default(name))
    return next(own, None) or next(iter(library), None) or _generate(choices)[0]


def _library_default(name: str) -> Winner:
    return Winner(Family.EXTERN, f"aten::{name}")


def _undescribed(name: str) -> str:
    node = current_node()
    return f"{name} ({node.target if node is not None else 'outside a graph'})"


def _judge(key: str, choices: list[Any], timings: Mapping[Any, float]) -> Tuned | None:
    """Return the row for *key*: the fastest choice that can be forced; None when there is none.

    Times arrive in milliseconds, inf for candidates that failed (select_algorithm.py).
    """
    measured: list[Timing] = []
    library_us: float | None = None
    for choice in choices:
        winner = identify(choice)
        milliseconds = timings.get(choice, math.inf)
        time_us = round(milliseconds * _US_PER_MS, 3) if math.isfinite(milliseconds) else None
        if winner is None:
            continue
        measured.append(Timing(winner, time_us))
        is_default = winner == _library_default(key.partition(" ")[0])
        if is_default or (winner.family is Family.EXTERN and library_us is None):
            library_us = time_us
    ranked = sorted((t for t in measured if t.time_us), key=lambda t: t.time_us or math.inf)
    if not ranked or ranked[0].time_us is None:
        return None
    runner_up = ranked[1] if len(ranked) > 1 else None
    evidence = Evidence(
        time_us=ranked[0].time_us,
        library_us=library_us,
        runner_up=str(runner_up.winner) if runner_up else None,
        runner_up_us=runner_up.time_us if runner_up else None,
        tried=len(choices),
        failed=len(choices) - len(ranked),
    )
    return Tuned(key, Row(ranked[0].winner, evidence), tuple(measured))
