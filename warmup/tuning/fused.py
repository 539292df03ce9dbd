"""`RegionCompiler`: compiles the region around a GEMM with each candidate, to time them fused.

It works in the child process that runs trials: inductor cannot compile a graph while it compiles
another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from warmup.core.errors import BuildError
from warmup.core.events import Emitter, Event, EventName
from warmup.core.rows import Evidence, Row, Winner
from warmup.core.trial import Candidate, Operands, Region, RegionKernels, Trial
from warmup.inductor import connect
from warmup.inductor.adapter import compile_model
from warmup.inductor.addmm_folding import mm_unfolded
from warmup.inductor.build_caches import empty_caches
from warmup.inductor.deferred_kernels import deferring_kernels
from warmup.inductor.gemm.region_kernels import KernelWatch, watching_kernels
from warmup.inductor.gemm.regions import module_of
from warmup.measuring.operands import OperandSets, poison_of
from warmup.measuring.reference import full_precision, wide_dtype
from warmup.measuring.screening import StageCallback
from warmup.table.lookup import Lookup, OnMiss

_MIN_PARALLEL = 2  # a single candidate is compiled when it is called
NO_EVIDENCE = Evidence(  # of a row that forces a candidate while it is measured
    time_us=math.inf, library_us=None, runner_up=None, runner_up_us=None, tried=0
)

Compiled = Callable[..., tuple[torch.Tensor, ...]]


class RegionSets(OperandSets):
    """Operand sets of a region. A call allocates its outputs: `poison` fills memory like theirs."""

    outputs: tuple[torch.Tensor, ...] = ()

    def poison(self) -> None:
        """Poison the memory that the allocator will reuse for the outputs."""
        for output in self.outputs:
            torch.full_like(output, poison_of(output.dtype))


class RegionCompiler:
    """Compiles the region of *trial* with each candidate, and keeps the compiled regions."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        assert trial.region is not None
        self.key = trial.key
        self._region, self._options, self._device = trial.region, trial.options, device
        self._known = dict(trial.known)
        self._inductor = connect()
        self._open = contextlib.ExitStack()
        # The build removes its cache folder, even when this process dies.
        self._open.enter_context(empty_caches(os.environ.get("TORCHINDUCTOR_CACHE_DIR")))
        self._compiled: dict[Winner, _CompiledRegion] = {}

    def close(self) -> None:
        """Drop all compiled regions."""
        self._open.close()

    def compile_ahead(
        self, winners: Iterable[Winner], make_sets: Callable[[], Operands], at: StageCallback
    ) -> None:
        """Compile the region with each of *winners*, while inductor's workers compile the kernels.

        Nothing runs: `make_call` waits for the kernels, and runs the region first. A candidate that
        cannot be compiled is refused there. *at* is called before each winner.
        """
        new = [winner for winner in winners if winner not in self._compiled]
        if len(new) < _MIN_PARALLEL:
            return
        inputs = make_sets().views(0)
        with deferring_kernels() as compiler:
            for winner in new:
                at(winner, "compile")
                with contextlib.suppress(Exception):
                    self._compile(winner, inputs, compiler.compile)

    def make_call(self, candidate: Candidate, sets: Operands) -> Callable[[int], object]:
        """Return the call of the region with *candidate* on the operand sets *sets*.

        Raises:
            BuildError: the compiled region has another kernel than the candidate, or fuses
                another way than the candidate or the winner of another GEMM says.
            Exception: any error of the compiler.
        """
        winner = candidate.winner
        if winner not in self._compiled:
            self._compile(winner, sets.views(0), lambda call: call())
            self._compiled[winner].has_run = True
        region = self._compiled[winner]
        region.check(self.key)
        if not region.has_run:  # loading kernels asks for launch configs
            try:
                with self._attached(region):
                    region.call(*sets.views(0))
            except BaseException:
                del self._compiled[winner]
                raise
            region.has_run = True
        return lambda number: region.call(*sets.views(number))

    def kernels_of(self, winner: Winner) -> RegionKernels | None:
        """Return the kernels of the region compiled with *winner*; None if it was not compiled.

        Spills and registers of kernels that never ran are None.
        """
        region = self._compiled.get(winner)
        if region is None or self.key not in region.hits:
            return None
        spills, registers = None, None
        if region.has_run:
            spills, registers = region.watch.spills_and_registers(self.key)
        is_gpu = self._device.type == "cuda"  # C++ kernels are not counted
        count = region.watch.count_launches() if is_gpu else None
        return RegionKernels(count, spills, registers, region.is_as_decided)

    def make_reference(self, sets: Operands) -> list[torch.Tensor]:
        """Return the outputs for the first operand set, computed in higher precision."""
        return region_reference(self._region, self._device, sets)

    def _compile(
        self, winner: Winner, inputs: list[Any], run: Callable[[Callable[[], object]], object]
    ) -> None:
        """Compile the region with *winner* in its first call, which *run* makes; keep it."""
        hits: list[str] = []

        def note(event: Event) -> None:
            if event.name is EventName.HIT:
                hits.append(str(event.fields["key"]))

        chosen = {**self._known, self.key: winner}
        rows = {key: Row(chosen_winner, NO_EVIDENCE) for key, chosen_winner in chosen.items()}
        lookup = Lookup(rows, OnMiss.FALLBACK, Emitter([note]), settles=True)
        call: Compiled = compile_model(module_of(self._region, self._device))
        # A key of an mm was asked after torch's passes had left its add alone.
        unfolded = mm_unfolded() if self.key.startswith("mm ") else contextlib.nullcontext()
        with unfolded, watching_kernels() as watch:
            region = _CompiledRegion(winner, call, lookup, hits, watch)
            with self._attached(region):
                run(lambda: call(*inputs))
        self._compiled[winner] = region

    @contextlib.contextmanager
    def _attached(self, region: _CompiledRegion) -> Iterator[None]:
        """Let the rows of *region* answer inductor while the context is open."""
        tag = f"warmup-region-{hashlib.sha256(str(region.winner).encode()).hexdigest()[:16]}"
        attachment = self._inductor.attach(region.lookup, self._options, tag, quiet=True)
        try:
            yield
        finally:
            attachment.detach()


@dataclass(slots=True)
class _CompiledRegion:
    """A region compiled with ``winner``: the keys with a row that it asked for, and its kernels.

    ``lookup`` has the rows that it was compiled with. Until it ``has_run``, workers may compile its
    kernels, and none is loaded.
    """

    winner: Winner
    call: Compiled
    lookup: Lookup
    hits: list[str]
    watch: KernelWatch
    has_run: bool = False

    @property
    def is_as_decided(self) -> bool:
        """Whether inductor fused as the rows say."""
        return self.winner.fused is None or not self.lookup.differing

    def check(self, key: str) -> None:
        """Check that the region has the kernel of its winner for *key*, fused as the rows say.

        Raises:
            BuildError: it has not.
        """
        if key not in self.hits:
            raise BuildError(f"{self.winner} is not in the compiled region", "it is timed bare")
        if not self.is_as_decided:
            differing = next(iter(self.lookup.differing))
            raise BuildError(
                f"with {self.winner} inductor does not fuse as decided for {differing}",
                "this candidate is left out",
            )


def region_reference(region: Region, device: torch.device, sets: Operands) -> list[torch.Tensor]:
    """Return the outputs of *region* for the first of *sets*, computed in higher precision.

    `RegionSets` are given outputs to poison.
    """
    inputs = sets.views(0)
    widths = [wide_dtype(each.dtype) for each in inputs if each.is_floating_point()]
    wide = min(widths, key=lambda dtype: dtype.itemsize, default=torch.float64)
    eager = module_of(region, device, wide)
    with full_precision():
        outputs = eager(*(t.to(wide) if t.is_floating_point() else t for t in inputs))
    if isinstance(sets, RegionSets):
        sets.outputs = tuple(module_of(region, device)(*inputs))
    return list(outputs)
