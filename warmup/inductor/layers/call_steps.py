"""`CallSteps`: several calls of layers that are one node of a graph, written as text.

The text says which call gets which tensor, so that the key of a cached graph has it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

OF_INPUTS: Final = -1  # the first number of the place of an input

StepPlace = tuple[int, int]  # of an output: (position of the call, of the output); or of an input


class CallStep(NamedTuple):
    """A call: its number in the `LayerProgram`, the name of its outputs, where its tensors are."""

    number: int
    outputs: str
    tensors: tuple[StepPlace, ...]


class CallSteps(NamedTuple):
    """Calls in their order, and the places of what the graph uses of their outputs.

    For each call, ``freed`` are the places that are read there for the last time, and ``kept`` the
    outputs that are read at all.
    """

    steps: tuple[CallStep, ...]
    results: tuple[StepPlace, ...]
    freed: tuple[tuple[StepPlace, ...], ...]
    kept: tuple[tuple[StepPlace, ...], ...]

    @classmethod
    def of(cls, steps: Sequence[CallStep], results: Sequence[StepPlace]) -> CallSteps:
        """Return *steps* whose outputs at *results* the graph uses."""
        last: dict[StepPlace, int] = {}
        for index, step in enumerate(steps):
            last.update(dict.fromkeys(step.tensors, index))
        last.update(dict.fromkeys(results, len(steps)))
        freed = [tuple(place for place in last if last[place] == at) for at in range(len(steps))]
        kept = [tuple(place for place in last if place[0] == at) for at in range(len(steps))]
        return cls(tuple(steps), tuple(results), tuple(freed), tuple(kept))

    def text(self) -> str:
        """Return the text that `call_steps` reads."""
        return json.dumps([self.steps, self.results])


@functools.cache
def call_steps(text: str) -> CallSteps:
    """Return the calls that `CallSteps.text` has written."""
    steps, results = json.loads(text)
    read = [CallStep(number, name, tuple(map(_place, places))) for number, name, places in steps]
    return CallSteps.of(read, tuple(map(_place, results)))


def _place(pair: Sequence[int]) -> StepPlace:
    first, second = pair
    return first, second


def run_steps(
    calls: CallSteps, call: Callable[[list[Any], int, str], Sequence[Any]], inputs: Sequence[Any]
) -> list[Any]:
    """Return the results of *calls*, each made by ``call(tensors, number, name of the outputs)``.

    A tensor between two calls is let go after the last call that reads it.
    """
    values: dict[StepPlace, Any] = {(OF_INPUTS, place): each for place, each in enumerate(inputs)}
    for step, freed, kept in zip(calls.steps, calls.freed, calls.kept, strict=True):
        tensors = [values[place] for place in step.tensors]
        for place in freed:
            del values[place]
        found = call(tensors, step.number, step.outputs)
        values.update((place, found[place[1]]) for place in kept)
    return [values[place] for place in calls.results]
