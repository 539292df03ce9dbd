"""The child program that runs trials: ``python -m warmup.tuning.worker FD``.

One JSON object a line: trials arrive on standard input, what comes of them goes to the file
descriptor FD, so that nothing that is printed meanwhile gets into it. The other end is
`warmup.measuring.trial_process`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
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
from warmup.tuning.fused import Fusing, RegionSets


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Run every trial that arrives, until the other end closes or the device is lost."""

    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()

    send({"ready": True})
    fusing: Fusing | None = None
    try:
        for line in requests:
            request = json.loads(line)
            trial = trial_from_json(request["trial"])
            fusing = _fusing(trial, fusing)
            if not _run(trial, request["skip"], send, fusing):
                return
    finally:
        if fusing is not None:
            fusing.close()


def _fusing(trial: Trial, before: Fusing | None) -> Fusing | None:
    """Return what compiles the region of *trial*, *before* when that is for the same key."""
    if before is not None:
        if trial.region is not None and before.key == trial.key:
            return before
        before.close()
    os.environ.update(trial.environment)
    return None if trial.region is None else Fusing(trial, torch.device(trial.device))


def _run(trial: Trial, skip: list[int], send: Any, fusing: Fusing | None) -> bool:
    """Run one trial; return whether the device can still be used."""
    device = torch.device(trial.device)
    numbers = {candidate.winner: i for i, candidate in enumerate(trial.candidates)}
    # Why each is skipped the other end knows.
    skipped = [
        Outcome(winner=trial.candidates[i].winner, rejection=Rejection.CRASHED) for i in skip
    ]

    def at(winner: Winner, stage: str) -> None:
        send({"at": numbers[winner], "stage": stage})

    def make_sets(seed: int, most: int) -> OperandSets:
        return (OperandSets if fusing is None else RegionSets)(trial, device, seed, most)

    def is_lost(_error: BaseException) -> bool:
        return not _device_works(device)

    try:
        with precision_of(parse_problem(trial.key), device), _on_stream(device):
            if fusing is not None:
                wanted = [winner for winner, number in numbers.items() if number not in skip]
                fusing.hand_over(wanted, lambda: make_sets(trial.seed, 1), at)
            outcomes = run_trial(
                trial,
                make_sets,
                make_call if fusing is None else fusing.make_call,
                make_reference=None if fusing is None else fusing.make_reference,
                on_stage=at,
                rejected=skipped,
                is_lost=is_lost,
            )
    except Exception as error:  # noqa: BLE001  told to the other end
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        if _device_works(device):
            send({"failed": said})
            return True
        send({"lost": said, "reason": reason_for(error)})
        return False
    finally:
        if device.type == "cuda" and _device_works(device):
            torch.cuda.empty_cache()
    found = [outcome_to_json(outcome) for outcome in outcomes]
    send({"outcomes": found, "clock_mhz": sm_clock_mhz(device)})
    return True


def _on_stream(device: torch.device) -> Any:
    """Return a context in which work goes to a stream of its own: a graph is captured on it."""
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
    """Serve the process that started this one, over the file descriptor it names last."""
    end_with_parent()
    assemble_as_workers_do()
    if WORKERS in sys.argv:
        start_workers("auto")
    with os.fdopen(int(sys.argv[-1]), "wb") as answers:
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
