"""The child program of the measurements, with library calls that misbehave: see BAD below.

Started in place of ``warmup.tuning.worker``, with the same last argument. On a GPU the bad ones run
kernels of their own; on a CPU they do the same with what a CPU has.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import torch
from torch._inductor.select_algorithm import extern_kernels

from warmup.measuring import trial as screening
from warmup.measuring.clock import Batch
from warmup.tuning import worker


def good(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b, out=out)


def bad_zeros(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.zero_()


def bad_half(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    rows = a.shape[0] // 2
    torch.mm(a[:rows], b, out=out[:rows])
    return out


def bad_tile(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    torch.mm(a, b, out=out)
    out[:2, :2] = 0
    return out


def bad_fault(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.is_cuda:
        from bad_kernels import write_out_of_bounds

        write_out_of_bounds(out)
    else:
        ctypes.string_at(0)
    return out


def bad_hang(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.is_cuda:
        from bad_kernels import spin

        spin(out)
    else:
        time.sleep(3600)
    return out


def bad_exit(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    os._exit(9)


def bad_shared_memory(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.is_cuda:
        from bad_kernels import want_shared_memory

        want_shared_memory(a, b, out)
        return out
    raise RuntimeError("out of resource: shared memory")


def bad_memory(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if not out.is_cuda:
        raise MemoryError
    torch.empty(2**50, dtype=torch.uint8, device=out.device)
    return out


def bad_clock(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b, out=out)


BAD: tuple[Callable[..., torch.Tensor], ...] = (
    *(bad_zeros, bad_half, bad_tile, bad_fault, bad_hang, bad_exit),
    *(bad_shared_memory, bad_memory, bad_clock),
)


class _LyingBatch:
    def __init__(self, batch: Batch) -> None:
        self._batch, self.calls = batch, batch.calls

    def time(self) -> float:
        return self._batch.time() / 10


def _misbehave() -> None:
    for kernel in (good, *BAD):
        setattr(extern_kernels, kernel.__name__, kernel)
    prepare = screening.Screening._prepare

    def lie(self: screening.Screening, run: screening.CandidateRun) -> None:
        prepare(self, run)
        if "bad_clock" in run.winner.uid and run.batch is not None:
            run.batch = _LyingBatch(run.batch)

    screening.Screening._prepare = lie


if __name__ == "__main__":
    _misbehave()
    worker.main()
