"""`ConvolutionChoices`: the hooks of the row kind ``convolution``.

Max-autotune times the library's convolution against Triton templates, alone, and so does a build.
At serving the list of choices is reduced to the row's before inductor selects.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch._inductor.select_algorithm import AlgorithmSelectorCache

from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.inductor.convolution.calls import search_of
from warmup.inductor.convolution.choices import key_of, winner_of
from warmup.inductor.gemm.choices import library_or_first
from warmup.inductor.options import tuning_is_on
from warmup.inductor.own_measurements import OwnMeasurements
from warmup.inductor.patches import Patches
from warmup.inductor.versions import Version
from warmup.keys.question import Answers

_SELECTION: Final = "convolution"  # of the selection (kernel/conv.py)
_LEAST_CHOICES: Final = 2


class ConvolutionChoices:
    """Answers selections of convolutions from *answers* while attached."""

    def __init__(self, _version: Version, answers: Answers) -> None:
        self._answers = answers
        self._active = True
        self._measurements = OwnMeasurements()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(AlgorithmSelectorCache, "__call__", self._wrap_select)
        self._measurements.attach(patches)

    def _deactivate(self) -> None:
        self._active = False

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

            is_decision = name == _SELECTION and len(choices) >= _LEAST_CHOICES
            if not (self._active and is_decision and tuning_is_on()):
                return proceed(choices)
            library = library_or_first(name, choices)
            try:
                key = key_of(choices, input_nodes, layout)
            except ProblemError:  # a size is a range, for which the templates are not made
                return proceed([library])
            answer = self._answers.find(key)
            if isinstance(answer, Winner):
                chosen = [choice for choice in choices if winner_of(choice) == answer]
                if chosen:
                    result = proceed(chosen[:1])
                    self._answers.hit(key, answer)
                    return result
                answer = MissReason.TEMPLATE_ABSENT
            if self._answers.tunes:
                kw["return_multi_template"] = False
                with self._measurements.chosen_by(partial(self._measure, key, library)):
                    return proceed(choices)
            self._answers.miss(key, answer, str(winner_of(library)))
            return proceed([library])

        return select

    def _measure(
        self, key: str, default: Any, ready: list[Any], inputs: Any, layout: Any, _make: Any
    ) -> Any:
        """Return the winner for *key* among the compiled choices *ready*; *default* is a library's.

        It is what is compiled.
        """
        named = {winner: one for one in ready if (winner := winner_of(one)) is not None}
        library = winner_of(default)
        if library is None or library not in named:
            return ready[0]
        with torch.random.fork_rng(devices=[layout.device]), torch.no_grad():
            search = search_of(named, library, inputs, layout)
            winner = self._answers.measure_search(key, search)
        return named.get(winner or library, default)
