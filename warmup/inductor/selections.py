"""`SelectionChoices`: the hooks of row kinds of selections whose choices inductor lists itself.

Max-autotune times the library's kernel against Triton templates, alone, and so does a build. At
serving the list of choices is reduced to the row's before inductor selects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelCaller,
    TritonTemplateCaller,
)

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Hit, Missed
from warmup.core.method import Search, SearchCounts
from warmup.core.rows import Family, Winner
from warmup.core.trial import LiveSearch, TimedCall
from warmup.inductor.gemm.choices import identify, library_or_first, with_library
from warmup.inductor.gemm.key import strides_of
from warmup.inductor.listing import OwnMeasurements
from warmup.inductor.options import tuning_is_on
from warmup.inductor.patches import KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.kind import Problem
from warmup.keys.question import Answers, SearchQuestion

# `search_of`: inductor's choices for a selection as calls on random tensors.


def search_of(
    choices: Mapping[Winner, Any], library: Winner, inputs: Sequence[torch.Tensor], layout: Any
) -> LiveSearch:
    """Return the search among *choices* on *inputs*, which are compiled; *library* is the control.

    The result has the *layout*, and the dtype that it says.
    """
    sizes, strides = ([int(size) for size in of] for of in (layout.size, layout.stride))
    out = torch.empty_strided(sizes, strides, dtype=layout.dtype, device=inputs[0].device)
    runs = {winner: ChoiceCall.of(choice, inputs, out) for winner, choice in choices.items()}
    calls: dict[Winner, TimedCall] = {winner: run.call for winner, run in runs.items()}
    counts = SearchCounts(search=Search.DEFAULT, listed=len(calls))
    return LiveSearch(
        listed=(library,),
        calls=calls,
        more=lambda _times_us: {},
        written=lambda winner: runs[winner].written(),
        uncompiled={},
        counts=lambda: counts,
    )


@dataclass(frozen=True, slots=True)
class ChoiceCall:
    """A call of one choice, which returns its result or writes it to ``out``."""

    run: Callable[[], Any]
    out: torch.Tensor

    @classmethod
    def of(cls, choice: Any, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> ChoiceCall:
        """Return the call of *choice* on *inputs*; a template writes to *out*."""
        if isinstance(choice, ExternKernelCaller):
            untyped: Any = choice  # in torch
            library: Callable[..., Any] = untyped.to_callable()
            return cls(lambda: library(*inputs), out)
        bound: partial[Any] = choice.bmreq.make_run_fn(*inputs, out=out)
        interface = get_interface_for_device(out.device.type)

        def run() -> Any:
            stream = interface.get_raw_stream(interface.current_device())
            return bound(stream=stream)

        return cls(run, out)

    def call(self, _number: int) -> object:
        """Call the choice once, on the current stream."""
        return self.run()

    def written(self) -> list[torch.Tensor]:
        """Call once, on an output without values, and return the result."""
        self.out.fill_(math.nan)
        returned = self.run()
        return [returned if isinstance(returned, torch.Tensor) else self.out.clone()]


def random_factors(inputs: Sequence[Any], fan_in: int) -> list[torch.Tensor]:
    """Return random tensors for the first two of *inputs*, such that results have a factor's size.

    *fan_in* is the number of products that a result adds up.
    """
    x, w = (_random(one) for one in inputs[:2])
    w /= math.sqrt(fan_in)
    return [x, w]


def _random(operand: Any) -> torch.Tensor:
    sizes, strides = (
        [int(size) for size in of] for of in (operand.get_size(), strides_of(operand))
    )
    tensor = torch.empty_strided(
        sizes, strides, dtype=operand.get_dtype(), device=operand.get_device()
    )
    return tensor.normal_()


_LEAST_CHOICES: Final = 2
# What is tuned of a template. Its other kwargs follow from the operands and their precision.
_TILE_WORDS: Final = re.compile(r"\b(BLOCK_[MNKLC]|num_stages|num_warps)=([0-9]+)")

TensorMakers = Mapping[int, Callable[[Any], torch.Tensor]]


class ListedSelection(Protocol):
    """What a row kind knows about its selection."""

    @property
    def name(self) -> str:
        """The name that inductor gives to the selection."""

    @property
    def templates(self) -> Mapping[str, Any]:
        """Inductor's templates by the first words of their choices' names."""

    def is_kept(self, searched: frozenset[str], /) -> bool:
        """Return whether a table that *searched* these kinds has rows; else the library's."""

    def describe(self, choices: Sequence[Any], inputs: Sequence[Any], layout: Any, /) -> Problem:
        """Return the problem of the selection for which inductor lists *choices*.

        Raises:
            ProblemError: a key cannot describe it; the library's kernel is taken.
        """

    def tensors_for(self, inputs: Sequence[Any], makers: TensorMakers, /) -> list[torch.Tensor]:
        """Return tensors to time the choices on.

        *makers* has inductor's own functions for inputs that must not be random, by position.
        """


class SelectionChoices(KindHooks):
    """Answers the *selection* from *answers* while attached."""

    def __init__(self, selection: ListedSelection, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._selection = selection
        self._measurements = OwnMeasurements()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(AlgorithmSelectorCache, "__call__", self._wrap_select, with_library)
        self._measurements.attach(patches)

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

            is_decision = name == self._selection.name and len(choices) >= _LEAST_CHOICES
            if not (self._active and is_decision and tuning_is_on()):
                return proceed(choices)
            library = library_or_first(name, choices)
            if not self._selection.is_kept(self._settings.searched):
                return proceed([library])
            try:
                problem = self._selection.describe(choices, input_nodes, layout)
            except ProblemError:  # a size is a range, for which no row is measured
                return proceed([library])
            answer = self._answers.find(problem)
            if isinstance(answer, Winner):
                chosen = [choice for choice in choices if self._winner_of(choice) == answer]
                if chosen:
                    result = proceed(chosen[:1])
                    self._answers.emit(Hit(problem.key, str(answer)))
                    return result
                answer = MissReason.TEMPLATE_ABSENT
            if self._settings.measures:
                kw["return_multi_template"] = False
                with self._measurements.chosen_by(partial(self._measure, problem, library)):
                    return proceed(choices)
            self._answers.emit(Missed(problem.key, answer, str(self._winner_of(library))))
            return proceed([library])

        return select

    def _measure(
        self,
        problem: Problem,
        default: Any,
        ready: list[Any],
        inputs: Any,
        layout: Any,
        makers: TensorMakers | None,
    ) -> Any:
        """Return the winner for *problem* among the compiled choices *ready*, to be compiled.

        *default* is a library's.
        """
        named = {winner: one for one in ready if (winner := self._winner_of(one)) is not None}
        library = self._winner_of(default)
        if library is None or library not in named:
            return ready[0]
        with torch.random.fork_rng(devices=[layout.device]), torch.no_grad():
            tensors = self._selection.tensors_for(inputs, makers or {})
            search = search_of(named, library, tensors, layout)
            winner = self._answers.measure(SearchQuestion(problem, search))
        return named.get(winner or library, default)

    def _winner_of(self, choice: Any) -> Winner | None:
        return winner_of(choice, self._selection.templates)


def winner_of(choice: Any, templates: Mapping[str, Any]) -> Winner | None:
    """Return *choice* as a winner; None for a choice that a row cannot name.

    *templates* has inductor's templates by the first words of their choices' names.
    """
    template = templates.get(choice.name.rpartition("_")[0])
    if not isinstance(choice, TritonTemplateCaller) or template is None:
        return identify(choice)
    tuned = sorted((name, int(value)) for name, value in _TILE_WORDS.findall(choice.description))
    return Winner(Family.TEMPLATE, template.uid, tuple(tuned), template.src_hash)
