"""The child program that runs trials: ``python -m warmup.tuning.worker FD``.

Messages are JSON objects, one per line. Trials arrive on standard input; outcomes go to the file
descriptor FD, since compilers and kernels may print to standard output. The other end is
`warmup.measuring.trial_process`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO

import torch

from warmup.core.child_process import end_with_parent
from warmup.core.rows import Rejection, Winner
from warmup.core.trial import Outcome, Trial, trial_from_json
from warmup.inductor import start_workers
from warmup.inductor.gemm.calls import make_call
from warmup.inductor.workers import assemble_as_workers_do
from warmup.keys.gemm_text import parse_problem
from warmup.measuring.gpu_state import sm_clock_mhz
from warmup.measuring.operands import OperandSets
from warmup.measuring.screening import reason_for
from warmup.measuring.trial_process import WORKERS, outcome_to_json
from warmup.measuring.trials import run_trial
from warmup.models.precision import precision_of
from warmup.tuning.fused import RegionCompiler, RegionSets


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Run each trial that arrives, until *requests* ends or the device is lost."""

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
    """Return a compiler for the region of *trial*: *last*, if that is for the same key."""
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
        with precision_of(parse_problem(trial.key), device), _on_stream(device):
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
        if compiler is not None:
            outcomes = [replace(one, kernels=compiler.kernels_of(one.winner)) for one in outcomes]
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
    send({"outcomes": [*map(outcome_to_json, outcomes)], "clock_mhz": sm_clock_mhz(device)})
    return True


def _on_stream(device: torch.device) -> Any:
    """Return a context with a stream of its own, on which CUDA graphs can be captured."""
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
    """Serve the parent process; the last argument is the file descriptor for outcomes."""
    end_with_parent()
    assemble_as_workers_do()
    if WORKERS in sys.argv:
        start_workers("auto", for_build=True)
    with os.fdopen(int(sys.argv[-1]), "wb") as answers:
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
