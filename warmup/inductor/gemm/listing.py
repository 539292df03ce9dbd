"""`CandidateLists`: the hooks where inductor lists the candidates of a GEMM selection.

- ``InductorChoices._finalize_template_configs`` lists candidates before their code is generated:
  the hook drops all but the winner and the library call, or adds candidates to be measured.
- ``CppGemmTemplate.add_choices`` generates code and packs weights: the hook defers the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.select_algorithm import ExternKernelChoice

from warmup.core.errors import ProblemError
from warmup.core.method import Search
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.inductor.gemm.choices import DeferredCppChoices, force_choice
from warmup.inductor.gemm.key import describe
from warmup.inductor.gemm.search import Selection, named_alone, search, unlisted_candidates
from warmup.inductor.options import option_value, tuning_is_on
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.gemm import VIA_CHOICES
from warmup.keys.question import Answers


@dataclass(slots=True)
class ListNotes:
    """What the lists of a selection left out and added; a selection may have several lists.

    ``rejected`` is why the winner of a row could not be forced, and ``was_asked`` is true where
    inductor's own handler listed the candidates.
    """

    dropped: int = 0
    rejected: MissReason | None = None
    searched: SearchCounts | None = None
    was_asked: bool = False


class CandidateLists(Hooks):
    """Lists the candidates that *answers* need while attached, and notes the rest."""

    def __init__(self, version: Version, answers: Answers) -> None:
        self._version = version
        self._answers = answers
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(InductorChoices, "_finalize_template_configs", self._wrap_finalize)
        patches.wrap(CppGemmTemplate, "add_choices", self._wrap_add_choices)

    def take_notes(self) -> ListNotes:
        """Return this thread's notes since its last selection, and begin anew."""
        notes, self._local.notes = self._notes, ListNotes()
        return notes

    @property
    def _notes(self) -> ListNotes:
        notes: ListNotes | None = getattr(self._local, "notes", None)
        if notes is None:
            notes = self._local.notes = ListNotes()
        return notes

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

            if op_name not in VIA_CHOICES or not self._active or not tuning_is_on():
                return list_all()
            self._notes.was_asked = True
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
            kept = self._keep_winner_and_library(offered, selection, answer)
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
        """Return what inductor *listed* and what the search adds, and note how it was searched.

        A selection may be listed in parts: from torch 2.12 on addmm lists its templates last.
        """
        mode = Search.DEFAULT if key is None else self._answers.search
        near = () if key is None or mode is Search.DEFAULT else self._answers.neighbours(key)
        if mode is Search.IMPORTED:
            result, listed = named_alone(selection, listed, near), []
        else:
            result = search(selection, mode, listed, near)
        notes = self._notes
        before = notes.searched
        notes.searched = result.searched if before is None else before + result.searched
        return [*listed, *result.choices]

    def _keep_winner_and_library(
        self,
        template_choices: Mapping[str, Iterator[Any]],
        selection: Selection,
        answer: Winner | MissReason,
    ) -> list[Any]:
        """Return the library call and the winner's choice; count the other choices in the notes."""
        library = {t.uid for t in selection.templates if isinstance(t, ExternKernelChoice)}
        kept: list[Any] = []
        for uid, candidates in template_choices.items():
            first = next(candidates, None)  # lazy: this generates no code
            if first is None:
                continue
            if isinstance(answer, Winner) and uid == answer.uid and uid not in library:
                forced = force_choice(self._version, answer, first)
                if isinstance(forced, MissReason):
                    self._notes.dropped += 1
                    self._notes.rejected = forced
                else:
                    kept.append(forced)
            elif uid in library:
                kept.append(first)
            else:
                self._notes.dropped += 1
        return kept

    def _wrap_add_choices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_choices(cls: Any, choices: list[Any], *args: Any, **kwargs: Any) -> Any:
            if not self._active or not tuning_is_on():
                return original(cls, choices, *args, **kwargs)
            choices.append(DeferredCppChoices(lambda into: original(cls, into, *args, **kwargs)))
            return None

        return add_choices
