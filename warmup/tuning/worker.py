"""The child program that runs trials: ``python -m warmup.tuning.worker FD``.

Messages are JSON objects, one per line. Trials arrive on standard input; outcomes go to the file
descriptor FD, since compilers and kernels may print to standard output. The other end is
`warmup.measuring.trial_process`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import torch

from warmup.core.errors import BuildError, MissReason
from warmup.core.events import Emitter, HookEvent, Tally
from warmup.core.processes import answering
from warmup.core.rows import Row, Winner
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
from warmup.inductor.cached_graphs import VariantGraphs, deferring_kernels
from warmup.inductor.caches import empty_caches, own_cache_entries
from warmup.inductor.gemm.blas import refuse_fallbacks
from warmup.inductor.gemm.hooks import KernelWatch, watching_kernels
from warmup.inductor.gemm.question import make_call
from warmup.inductor.gemm.regions import module_of
from warmup.inductor.machine import assemble_as_workers_do, warm_workers
from warmup.inductor.options import mm_unfolded
from warmup.keys.gemm import GemmProblem
from warmup.keys.kind import Problem
from warmup.keys.question import Answers, Question
from warmup.measuring.machine import sm_clock_mhz
from warmup.measuring.reference import (
    OperandSets,
    dtype_named,
    full_precision,
    poison_of,
    wide_dtype,
)
from warmup.measuring.trial import StageCallback, reason_for, run_trial
from warmup.measuring.trial_process import FOLDER, WORKERS
from warmup.models.rebuilt import precision_of
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.tuning.trials import NO_EVIDENCE, next_variants, spilling_of, variants_to_run

# `RegionCompiler`: compiles the region around a GEMM with each candidate, to time them fused.

_AHEAD: Final = 4  # regions that are compiled, at least, when a region is run: its own and the next
_MOST_AHEAD: Final = 32  # and so many at most, in idle time
_IDLE_S: Final = 0.2
_CACHES: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

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
        self.trial, self._region, self._device = trial, trial.region, device
        self._inductor = connect()
        self._compiled: dict[Winner, _CompiledRegion] = {}
        self._unfusable: set[str] = set()  # templates into which inductor fuses nothing here

    def compile_ahead(
        self, winners: Iterable[Winner], at: StageCallback = lambda _winner, _stage: None
    ) -> None:
        """Compile the region with each of *winners*, while inductor's workers compile the kernels.

        Nothing runs on the device, which may be timing: `make_call` waits for the kernels, and runs
        the region first. A candidate that cannot be compiled is refused there.
        """
        new = [winner for winner in winners if winner not in self._compiled]
        if not new:
            return
        inputs, turn = self._make_inputs(), _Turn(self._lookup_for(new[0], Tally()))

        @contextlib.contextmanager
        def compiling(winner: Winner) -> Iterator[None]:
            tally = Tally()
            turn.lookup = self._lookup_for(winner, tally)
            with watching_kernels() as watch, own_cache_entries(str(winner)):
                region = _CompiledRegion(winner, graphs, turn.lookup, tally.hits, watch)
                self._compiled[winner] = region
                if self._is_left_out(winner):
                    raise BuildError(f"inductor fuses nothing into {winner.uid}", "it is left out")
                at(winner, "compile")
                yield
            if winner.fused and not region.is_as_decided:
                self._unfusable.add(winner.uid)

        graphs = VariantGraphs(module_of(self._region, self._device), new, compiling)
        # A key of an mm was asked after torch's passes had left its add alone.
        is_mm = self.trial.key.startswith("mm ")
        unfolded = mm_unfolded() if is_mm else contextlib.nullcontext()
        with unfolded, self._attached(turn), deferring_kernels() as compiler:
            compiler.compile(lambda: graphs.compile(inputs))

    def next_variants(self, outcomes: Sequence[Outcome]) -> list[Winner]:
        """Return the candidates to run after *outcomes*, as the contenders of the trial say."""
        assert self.trial.contenders is not None
        variants = next_variants(self.trial.contenders, self._region, outcomes)
        return [one for one in variants if not self._is_left_out(one)]

    def make_call(self, candidate: Candidate, sets: Operands) -> Callable[[int], object]:
        """Return the call of the region with *candidate*, which must have its kernel."""
        winner = candidate.winner
        self.compile_ahead([winner])
        region = self._compiled[winner]
        region.check(self.trial.key)
        if not region.has_run:  # loading kernels asks for launch configs
            with self._attached(region.lookup):
                region.call(sets.views(0))
            region.has_run = True
        return lambda number: region.call(sets.views(number))

    def kernels_of(self, winner: Winner) -> RegionKernels | None:
        """Return the kernels of the region compiled with *winner*; None if it was not compiled.

        What is known of a loaded kernel alone is None where it never ran.
        """
        region, key = self._compiled.get(winner), self.trial.key
        if region is None or key not in region.hits:
            return None
        facts = region.watch.facts_of(key) if region.has_run else {}
        is_gpu = self._device.type == "cuda"  # C++ kernels are not counted
        count = region.watch.count_launches() if is_gpu else None
        return RegionKernels(count, is_as_decided=region.is_as_decided, **facts)

    def make_reference(self, sets: Operands) -> list[torch.Tensor]:
        return region_reference(self._region, self._device, sets)

    def _make_inputs(self) -> list[torch.Tensor]:
        return [
            torch.empty(spec.span, dtype=dtype_named(spec.dtype), device=self._device).as_strided(
                spec.sizes, spec.strides, spec.offset
            )
            for spec in self._region.inputs
        ]

    def _is_left_out(self, winner: Winner) -> bool:
        """Whether *winner* was not compiled, and inductor fuses nothing into its template."""
        region = self._compiled.get(winner)
        is_unfusable = winner.fused is True and winner.uid in self._unfusable
        return is_unfusable and not (region and region.hits)

    def _lookup_for(self, winner: Winner, tally: Tally) -> Lookup:
        chosen = {**dict(self.trial.known), self.trial.key: winner}
        rows = {key: Row(chosen_winner, NO_EVIDENCE) for key, chosen_winner in chosen.items()}
        given = rows, OnMiss.FALLBACK, Emitter([tally])
        return Lookup(*given, settles=True, fixes_rows=self.trial.notes_bits)

    @contextlib.contextmanager
    def _attached(self, answers: Answers) -> Iterator[None]:
        what = f"{self.trial.key} {self.trial.known}"
        tag = f"warmup-region-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
        attachment = self._inductor.attach(answers, self.trial.options, tag, quiet=True)
        try:
            yield
        finally:
            attachment.detach()


class _Turn:
    """Answers as the ``lookup`` of the candidate whose graph is compiled."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.settings = lookup.settings

    def find(self, problem: Problem) -> Winner | MissReason:
        return self.lookup.find(problem)

    def measure(self, question: Question) -> Winner | None:
        return self.lookup.measure(question)

    def emit(self, event: HookEvent) -> None:
        self.lookup.emit(event)


@dataclass(slots=True)
class _CompiledRegion:
    """A region compiled with ``winner``: the keys with a row that it asked for, and its kernels.

    Until it ``has_run``, workers may compile its kernels, and none is loaded.
    """

    winner: Winner
    graphs: VariantGraphs
    lookup: Lookup
    hits: Collection[str]
    watch: KernelWatch
    has_run: bool = False

    @property
    def is_as_decided(self) -> bool:
        return self.winner.fused is None or not self.lookup.differing

    def call(self, inputs: list[Any]) -> object:
        return self.graphs.call(self.winner, inputs)

    def check(self, key: str) -> None:
        """Raise a BuildError where the region lacks its winner's kernel, or fuses another way."""
        if (error := self.graphs.error(self.winner)) is not None:
            raise error
        if key not in self.hits:
            raise BuildError(f"{self.winner} is not in the compiled region", "it is timed bare")
        if not self.is_as_decided:
            differing = next(iter(self.lookup.differing))
            raise BuildError(
                f"with {self.winner} inductor does not fuse as decided for {differing}",
                "this candidate is left out",
            )


def region_reference(region: Region, device: torch.device, sets: Operands) -> list[torch.Tensor]:
    """Return the outputs of *region* for the first of *sets*, computed in higher precision."""
    # `RegionSets` are given outputs to poison.
    inputs = sets.views(0)
    widths = [wide_dtype(each.dtype) for each in inputs if each.is_floating_point()]
    wide = min(widths, key=lambda dtype: dtype.itemsize, default=torch.float64)
    eager = module_of(region, device, wide)
    with full_precision():
        outputs = eager(*(t.to(wide) if t.is_floating_point() else t for t in inputs))
    if isinstance(sets, RegionSets):
        sets.outputs = tuple(module_of(region, device)(*inputs))
    return list(outputs)


@dataclass(slots=True)
class _RequestedTrial:
    trial: Trial
    rejected: list[Outcome]
    compiler: RegionCompiler | None = None


class TrialServer:
    """Compiles and runs trials as the requests of a `TrialProcess` say; *send* answers.

    Without a request it compiles regions of trials to come, and while it runs one the workers
    compile the kernels of the next.
    """

    def __init__(
        self, send: Callable[[Mapping[str, Any]], None], *, has_workers: bool = False
    ) -> None:
        self._send, self._are_cold = send, has_workers
        self._waiting: dict[int, _RequestedTrial] = {}
        self._caches = contextlib.ExitStack()
        self._of_regions: dict[str, str] = {}  # the variables of the caches, other than the build's
        self._spilling: set[Winner] = set()  # in any region: they may in the next

    def serve(self, requests: Iterable[bytes]) -> None:
        lines = queue.SimpleQueue[bytes | None]()

        def read() -> None:  # always, so that the other end never waits to send
            for line in requests:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        with self._caches:
            while True:
                idle_s = _IDLE_S if self._uncompiled(_MOST_AHEAD) else None
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=idle_s)
                    if line is None or not self._answer(json.loads(line)):
                        return
                    continue
                self._compile_ahead(self._uncompiled(_MOST_AHEAD)[:1])

    def _answer(self, request: Mapping[str, Any]) -> bool:
        rejected = msgspec.convert(request["rejected"], list[Outcome])
        if "prepare" in request:
            trial = trial_from_json(request["trial"])
            self._waiting[request["prepare"]] = _RequestedTrial(trial, rejected)
            return True
        self._waiting = {number: self._waiting[number] for number in request["waiting"]}
        number = request["run"]
        one = self._waiting[number]
        one.rejected = rejected
        if one.trial.region is not None:
            self._compile_ahead(self._uncompiled(_AHEAD))
        return self._run(number, one)

    def _uncompiled(self, most: int) -> list[int]:
        regions = [number for number, one in self._waiting.items() if one.trial.region]
        return [number for number in regions[:most] if self._waiting[number].compiler is None]

    def _compile_ahead(self, numbers: Iterable[int]) -> None:
        """Compile what may be run of the trials *numbers*; what fails here fails in their runs."""
        if all(one.compiler is None for one in self._waiting.values()):
            self._caches.close()
            # The other end removes the folder, even when this process dies.
            self._caches.enter_context(empty_caches(os.environ.get(FOLDER)))
            self._of_regions = {name: os.environ[name] for name in _CACHES}
        for number in numbers:
            one = self._waiting[number]
            trial, device = one.trial, torch.device(one.trial.device)
            one.compiler = RegionCompiler(trial, device)
            winners = [candidate.winner for candidate in trial.candidates]
            if trial.contenders is not None:
                winners = [trial.library, *variants_to_run(trial.contenders, self._spilling)]
            refused = {outcome.winner for outcome in one.rejected}
            wanted = [winner for winner in winners if winner not in refused]
            with contextlib.suppress(Exception), self._conditions_of(trial, device):
                one.compiler.compile_ahead(wanted, self._at(number, trial))
            if device.type == "cuda" and _device_works(device):
                torch.cuda.empty_cache()
            self._send({"of": number, "at": None, "stage": "operands"})

    def _at(self, number: int, trial: Trial) -> StageCallback:
        numbers = {candidate.winner: i for i, candidate in enumerate(trial.candidates)}

        def at(winner: Winner, stage: str) -> None:
            self._send({"of": number, "at": numbers[winner], "stage": stage})

        return at

    @contextlib.contextmanager
    def _conditions_of(self, trial: Trial, device: torch.device) -> Iterator[None]:
        os.environ.update(trial.environment)
        if trial.region is not None:
            os.environ.update(self._of_regions)
        with precision_of(GemmProblem.of_key(trial.key), device), _on_stream(device):
            yield

    def _run(self, number: int, one: _RequestedTrial) -> bool:
        trial, compiler, rejected = one.trial, one.compiler, one.rejected
        device, at = torch.device(trial.device), self._at(number, trial)
        refused = {outcome.winner for outcome in rejected}
        if self._are_cold:
            warm_workers(device)
            self._are_cold = False

        def make_sets(seed: int, most: int) -> OperandSets:
            return (OperandSets if compiler is None else RegionSets)(trial, device, seed, most)

        def more(outcomes: Sequence[Outcome]) -> Sequence[Winner]:
            assert compiler is not None
            winners = compiler.next_variants(outcomes)
            compiler.compile_ahead([one for one in winners if one not in refused], at)
            return winners

        try:
            with self._conditions_of(trial, device):
                outcomes = run_trial(
                    trial,
                    make_sets,
                    make_call if compiler is None else compiler.make_call,
                    make_reference=None if compiler is None else compiler.make_reference,
                    kernels_of=compiler.kernels_of if compiler else lambda _winner: None,
                    more=None if trial.contenders is None else more,
                    on_stage=at,
                    rejected=rejected,
                    is_lost=lambda _error: not _device_works(device),
                )
            clock_mhz = sm_clock_mhz(device)
            outcomes = [replace(one, clock_mhz=clock_mhz) for one in outcomes]
        except Exception as error:  # noqa: BLE001  reported to the other end
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            if _device_works(device):
                self._send({"failed": message})
                return True
            self._send({"lost": message, "reason": reason_for(error)})
            return False
        finally:
            del self._waiting[number]
            if device.type == "cuda" and _device_works(device):
                torch.cuda.empty_cache()
        self._spilling |= spilling_of(outcomes)
        self._send({"outcomes": msgspec.to_builtins(outcomes)})
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
    with answering() as send:
        assemble_as_workers_do()
        if has_workers := WORKERS in sys.argv:
            start_workers("auto", for_build=True)
        refuse_fallbacks()
        send({"ready": True})
        TrialServer(send, has_workers=has_workers).serve(sys.stdin.buffer)


if __name__ == "__main__":
    main()
