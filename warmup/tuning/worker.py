"""The child program that runs trials: ``python -m warmup.tuning.worker FD``.

Messages are JSON objects, one per line. Trials arrive on standard input; outcomes go to the file
descriptor FD, since compilers and kernels may print to standard output. The other end is
`warmup.measuring.trial_process`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import msgspec
import torch

from warmup.core.errors import BuildError
from warmup.core.events import Emitter, Event, EventName
from warmup.core.processes import end_with_parent
from warmup.core.rows import Evidence, Rejection, Row, Winner
from warmup.core.trial import (
    Candidate,
    Operands,
    Outcome,
    Region,
    RegionKernels,
    Trial,
    trial_from_json,
)
from warmup.inductor import connect, start_workers
from warmup.inductor.adapter import compile_model
from warmup.inductor.cached_graphs import deferring_kernels
from warmup.inductor.caches import empty_caches
from warmup.inductor.gemm.hooks import KernelWatch, watching_kernels
from warmup.inductor.gemm.question import make_call
from warmup.inductor.gemm.regions import module_of
from warmup.inductor.machine import assemble_as_workers_do
from warmup.inductor.options import mm_unfolded
from warmup.keys.gemm import GemmProblem
from warmup.measuring.machine import sm_clock_mhz
from warmup.measuring.reference import OperandSets, full_precision, poison_of, wide_dtype
from warmup.measuring.trial import StageCallback, reason_for, run_trial
from warmup.measuring.trial_process import WORKERS
from warmup.models.rebuilt import precision_of
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

# `RegionCompiler`: compiles the region around a GEMM with each candidate, to time them fused.

_MIN_PARALLEL = 2  # a single candidate is compiled when it is called
NO_EVIDENCE = Evidence(  # of a row that forces a candidate while it is measured
    time_us=math.inf, library_us=None, runner_up=None, runner_up_us=None, tried=0
)

Compiled = Callable[..., tuple[torch.Tensor, ...]]


class RegionSets(OperandSets):
    """Operand sets of a region. A call allocates its outputs: `poison` fills memory like theirs."""

    outputs: tuple[torch.Tensor, ...] = ()

    def poison(self) -> None:
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
        self._open.close()

    def compile_ahead(
        self, winners: Iterable[Winner], make_sets: Callable[[], Operands], at: StageCallback
    ) -> None:
        """Compile the region with each of *winners*, while inductor's workers compile the kernels.

        Nothing runs: `make_call` waits for the kernels, and runs the region first. A candidate that
        cannot be compiled is refused there.
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
        """Return the call of the region with *candidate*, which must have its kernel."""
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
        tag = f"warmup-region-{hashlib.sha256(str(region.winner).encode()).hexdigest()[:16]}"
        attachment = self._inductor.attach(region.lookup, self._options, tag, quiet=True)
        try:
            yield
        finally:
            attachment.detach()


@dataclass(slots=True)
class _CompiledRegion:
    """A region compiled with ``winner``: the keys with a row that it asked for, and its kernels.

    Until it ``has_run``, workers may compile its kernels, and none is loaded.
    """

    winner: Winner
    call: Compiled
    lookup: Lookup
    hits: list[str]
    watch: KernelWatch
    has_run: bool = False

    @property
    def is_as_decided(self) -> bool:
        return self.winner.fused is None or not self.lookup.differing

    def check(self, key: str) -> None:
        """Raise a BuildError where the region lacks its winner's kernel, or fuses another way."""
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


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()

    send({"ready": True})
    compiler: RegionCompiler | None = None
    try:
        for line in requests:
            request = json.loads(line)
            trial = trial_from_json(request["trial"])
            compiler = _compiler_for(trial, compiler)
            if not _run(trial, request["skip"], send, compiler):
                return
    finally:
        if compiler is not None:
            compiler.close()


def _compiler_for(trial: Trial, last: RegionCompiler | None) -> RegionCompiler | None:
    if last is not None:
        if trial.region is not None and last.key == trial.key:
            return last
        last.close()
    os.environ.update(trial.environment)
    return None if trial.region is None else RegionCompiler(trial, torch.device(trial.device))


def _run(trial: Trial, skip: list[int], send: Any, compiler: RegionCompiler | None) -> bool:
    """Run *trial* without the candidates numbered in *skip*; return whether the device works."""
    device = torch.device(trial.device)
    numbers = {candidate.winner: i for i, candidate in enumerate(trial.candidates)}
    # The other end has the reasons: these candidates took down an earlier child.
    skipped = [
        Outcome(winner=trial.candidates[i].winner, rejection=Rejection.CRASHED) for i in skip
    ]

    def at(winner: Winner, stage: str) -> None:
        send({"at": numbers[winner], "stage": stage})

    def make_sets(seed: int, most: int) -> OperandSets:
        return (OperandSets if compiler is None else RegionSets)(trial, device, seed, most)

    def is_lost(_error: BaseException) -> bool:
        return not _device_works(device)

    try:
        with precision_of(GemmProblem.of_key(trial.key), device), _on_stream(device):
            if compiler is not None:
                wanted = [winner for winner, number in numbers.items() if number not in skip]
                compiler.compile_ahead(wanted, lambda: make_sets(trial.seed, 1), at)
            outcomes = run_trial(
                trial,
                make_sets,
                make_call if compiler is None else compiler.make_call,
                make_reference=None if compiler is None else compiler.make_reference,
                on_stage=at,
                rejected=skipped,
                is_lost=is_lost,
            )
        kernels_of = compiler.kernels_of if compiler else lambda _winner: None
        clock_mhz = sm_clock_mhz(device)
        outcomes = [
            replace(one, kernels=kernels_of(one.winner), clock_mhz=clock_mhz) for one in outcomes
        ]
    except Exception as error:  # noqa: BLE001  reported to the other end
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        if _device_works(device):
            send({"failed": message})
            return True
        send({"lost": message, "reason": reason_for(error)})
        return False
    finally:
        if device.type == "cuda" and _device_works(device):
            torch.cuda.empty_cache()
    send({"outcomes": msgspec.to_builtins(outcomes)})
    return True


def _on_stream(device: torch.device) -> Any:
    if device.type == "cpu":
        return torch.inference_mode()
    torch.cuda.set_device(device)
    stream: Any = torch.cuda.Stream  # untyped in torch
    return torch.cuda.stream(stream(device))


def _device_works(device: torch.device) -> bool:
    """Return whether *device* can still be used: after some faults every call fails."""
    if device.type == "cpu":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def main() -> None:
    end_with_parent()
    assemble_as_workers_do()
    if WORKERS in sys.argv:
        start_workers("auto", for_build=True)
    with os.fdopen(int(sys.argv[-1]), "wb") as answers:
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
