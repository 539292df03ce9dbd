"""Candidates as they will run: a region compiled with each of them.

For the child program that runs trials, since nothing can be compiled in the midst of compiling.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from warmup.core.errors import BuildError
from warmup.core.events import Emitter, Event, EventName
from warmup.core.rows import Evidence, Row, Winner
from warmup.core.trial import Candidate, Operands, Trial
from warmup.inductor import connect
from warmup.inductor.adapter import compile_model, empty_caches
from warmup.inductor.gemm.regions import module_of
from warmup.inductor.workers import stopping_after_submit
from warmup.measuring.operands import OperandSets, poison_of
from warmup.measuring.reference import full_precision, wide_dtype
from warmup.measuring.screening import StageCallback
from warmup.table.lookup import Lookup, OnMiss

_SEVERAL = 2  # one alone is compiled when it is called
_NOTHING = Evidence(time_us=math.inf, library_us=None, runner_up=None, runner_up_us=None, tried=0)

Compiled = Callable[..., tuple[torch.Tensor, ...]]


class RegionSets(OperandSets):
    """Operand sets of a region. Its outputs are made by the calls: `poison` fills their memory."""

    outputs: tuple[torch.Tensor, ...] = ()

    def poison(self) -> None:
        """Leave poison in the memory that the allocator will hand out for the outputs."""
        for one in self.outputs:
            torch.full_like(one, poison_of(one.dtype))


class Fusing:
    """Compiles regions, and keeps what it compiled for the key that it was last asked about."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        assert trial.region is not None
        self.key = trial.key
        self._region, self._options, self._device = trial.region, trial.options, device
        self._known = dict(trial.known)
        self._open = contextlib.ExitStack()
        # In the build's own caches, which are removed whatever becomes of this process.
        self._open.enter_context(empty_caches(os.environ.get("TORCHINDUCTOR_CACHE_DIR")))
        self._compiled: dict[Winner, Compiled] = {}

    def close(self) -> None:
        """Forget what was compiled."""
        self._open.close()

    def hand_over(
        self, winners: Iterable[Winner], make_sets: Callable[[], Operands], at: StageCallback
    ) -> None:
        """Give the kernels of the region with each of *winners* to inductor's workers.

        They compile all of them at once, and `make_call` finds them compiled. What fails here fails
        there again, and is told then. *at* is told which one is next.
        """
        new = [winner for winner in winners if winner not in self._compiled]
        if len(new) < _SEVERAL:
            return
        inputs = make_sets().views(0)
        for winner in new:
            at(winner, "compile")
            with stopping_after_submit(), contextlib.suppress(Exception):
                self._compile(winner, inputs)

    def make_call(self, candidate: Candidate, sets: Operands) -> Callable[[int], object]:
        """Return the call of the region with *candidate* on the operand sets *sets*.

        Raises:
            BuildError: the candidate did not come into the compiled region.
            Exception: whatever compiling raises.
        """
        winner = candidate.winner
        if winner not in self._compiled:
            self._compiled[winner] = self._compile(winner, sets.views(0))
        compiled = self._compiled[winner]
        return lambda number: compiled(*sets.views(number))

    def make_reference(self, sets: Operands) -> list[torch.Tensor]:
        """Return the outputs for the first operand set, computed in higher precision."""
        inputs = sets.views(0)
        narrow = [one.dtype for one in inputs if one.is_floating_point()]
        wide = wide_dtype(narrow[0])
        eager = module_of(self._region, self._device, wide)
        with full_precision():
            found = eager(*(one.to(wide) if one.is_floating_point() else one for one in inputs))
        if isinstance(sets, RegionSets):
            sets.outputs = tuple(module_of(self._region, self._device)(*inputs))
        return list(found)

    def _compile(self, winner: Winner, inputs: list[Any]) -> Compiled:
        hits: list[str] = []

        def note(event: Event) -> None:
            if event.name is EventName.HIT:
                hits.append(str(event.fields["key"]))

        chosen = {**self._known, self.key: winner}
        rows = {key: Row(one, _NOTHING) for key, one in chosen.items()}
        lookup = Lookup(rows, OnMiss.FALLBACK, Emitter([note]))
        tag = f"warmup-region-{hashlib.sha256(str(winner).encode()).hexdigest()[:16]}"
        attachment = connect().attach(lookup, self._options, tag, quiet=True)
        try:
            compiled: Compiled = compile_model(module_of(self._region, self._device))
            compiled(*inputs)
        finally:
            attachment.detach()
        if self.key not in hits:
            raise BuildError(f"{winner} did not come into the region", "it is timed bare")
        return compiled
