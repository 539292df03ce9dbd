"""`measured_peaks`: the highest rates one device reaches, measured once and kept in a cache file.

Data sheets do not serve: they list boost clocks and sparse rates, and lack devices. A peak is the
best of several short runs, so that power limits and heat do not lower it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import platformdirs
import torch

from warmup.core.errors import TableFormatError
from warmup.core.files import replace_text
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks, PeaksJson, gbps_of, tflops_of, torch_name
from warmup.core.strict_json import read_json
from warmup.core.trial import TimedCall
from warmup.measuring.clock import batch_of
from warmup.measuring.machine import sm_clock_mhz

_PEAKS_FORMAT: Final = 6
_COPY_BYTES: Final = 4 * 2**30
_CPU_COPY_BYTES: Final = 2**28  # beyond any last cache of one socket
# m, n, k. A long sum reaches more than a square product does: fewer results for as much work.
_PEAK_SHAPES: Final = (
    (4096, 4096, 4096),
    (6144, 6144, 6144),
    (8192, 8192, 8192),
    (2048, 4096, 14336),
)
_CPU_PEAK_SHAPES: Final = ((1024, 1024, 1024),)
_PEAK_ROUNDS: Final = 8
_LOADING_CALLS: Final = 20  # of a large matmul: longer than a clock takes to be read
_CPU_PEAK_SECONDS: Final = 0.25  # for the rounds of one rate, beyond the first
_MAX_PEAKS_FILE_BYTES: Final = 16 * 1024
_PEAK_DTYPES: Final = ("bf16", "f16", "tf32", "f32", "i8", "f8_e4m3fn")
_CPU_PEAK_DTYPES: Final = ("bf16", "f32")
# Compute capabilities whose data sheets have one rate for both 8-bit dtypes. The library's products
# of integers reach two thirds of it (H100, torch 2.11), Triton's more.
_EQUAL_IN_8_BITS: Final = ((8, 9), (9, 0), (10, 0))


class _PeaksFile(msgspec.Struct, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=_PEAKS_FORMAT, le=_PEAKS_FORMAT)]
    peaks: PeaksJson


def measured_peaks(device: torch.device, folder: Path | None = None) -> Peaks | None:
    """Return the peaks of *device*, measured now unless *folder* has them; None of other devices.

    *folder* is the user's cache folder by default. A CPU's are for torch's number of threads.
    """
    if device.type not in ("cuda", "cpu"):
        return None
    path = (folder or platformdirs.user_cache_path("inductor-warmup") / "peaks") / _file_name(
        device
    )
    known = _read(path)
    if known is not None:
        return known
    peaks = measure_peaks(device)
    _write(path, peaks)
    return peaks


def measure_peaks(device: torch.device) -> Peaks:
    """Return the highest rates of copies, reads and matmuls that *device* reaches now.

    Bandwidth is the better of a large copy (bytes read plus bytes written) and a large read.
    """
    tflops, clocks = {}, {}
    for name in _PEAK_DTYPES if device.type == "cuda" else _CPU_PEAK_DTYPES:
        if best := _best_matmul(name, device):
            tflops[name] = float(f"{best.tflops:.4g}")
            if (clock := _clock_under(best.call, device)) is not None:
                clocks[name] = clock
    if device.type == "cuda" and torch.cuda.get_device_capability(device) in _EQUAL_IN_8_BITS:
        _raise_to(tflops, clocks, "i8", "f8_e4m3fn")
    return Peaks(
        tflops=tflops,
        gbps=round(_memory_gbps(device), 1),
        clock_mhz=sm_clock_mhz(device),
        measured=dt.datetime.now(dt.UTC).date().isoformat(),
        clocks=clocks,
    )


def _raise_to(tflops: dict[str, float], clocks: dict[str, int], name: str, other: str) -> None:
    if tflops.get(name, math.inf) >= tflops.get(other, 0.0):
        return
    tflops[name] = tflops[other]
    if other in clocks:
        clocks[name] = clocks[other]


def _best_us(call: TimedCall, device: torch.device) -> float:
    batch = batch_of(call, device, Launch.EAGER, L2.WARM, 1)
    best, started = batch.time(), time.monotonic()
    for _ in range(_PEAK_ROUNDS - 1):
        if device.type == "cpu" and time.monotonic() - started > _CPU_PEAK_SECONDS:
            break
        best = min(best, batch.time())
    return best


def _memory_gbps(device: torch.device) -> float:
    size = _CPU_COPY_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = min(_COPY_BYTES, free // 4)
    source = torch.randint(0, 2**31 - 1, (size // 8,), device=device)
    floats, target = source.view(torch.float32), torch.empty_like(source)
    copied = _best_us(lambda _: target.copy_(source), device)
    read = _best_us(lambda _: torch.amax(floats), device)
    return max(gbps_of(2 * size, copied), gbps_of(size, read))


@dataclass(frozen=True, slots=True)
class _Matmul:
    call: TimedCall
    tflops: float


def _best_matmul(name: str, device: torch.device) -> _Matmul | None:
    found = []
    dtype: torch.dtype = getattr(torch, torch_name("f32" if name == "tf32" else name))
    for shape in _PEAK_SHAPES if device.type == "cuda" else _CPU_PEAK_SHAPES:
        try:
            with _precision(name):
                call = _matmul(dtype, *shape, device)
                rate = tflops_of(2 * math.prod(shape), _best_us(call, device))
        except RuntimeError:  # no kernel for this dtype on this device, or no memory
            continue
        found.append(_Matmul(call, rate))
    return max(found, key=lambda one: one.tflops, default=None)


def _clock_under(call: TimedCall, device: torch.device) -> int | None:
    """Return the SM clock under *call*: an idle GPU soon reports a higher clock."""
    if device.type != "cuda":
        return None
    for number in range(_LOADING_CALLS):
        call(number)
    clock = sm_clock_mhz(device)
    torch.cuda.synchronize(device)
    return clock


def _matmul(dtype: torch.dtype, m: int, n: int, k: int, device: torch.device) -> TimedCall:
    if dtype is torch.int8:
        a, b = (torch.randint(-8, 8, sizes, device=device).to(dtype) for sizes in ((m, k), (n, k)))
        multiply: Callable[..., torch.Tensor] = torch._int_mm  # noqa: SLF001  its only name
        return lambda _: multiply(a, b.t())
    a, b = (torch.randn(sizes, device=device).to(dtype) for sizes in ((m, k), (n, k)))
    if dtype.itemsize == 1:
        one = torch.ones((), device=device)
        scaled = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001
        return lambda _: scaled(a, b.t(), one, one)
    out = torch.empty(m, n, dtype=dtype, device=device)
    return lambda _: torch.mm(a, b.t(), out=out)


class _precision:  # noqa: N801  used like a function in a with statement
    def __init__(self, name: str) -> None:
        self._wanted = "tf32" if name == "tf32" else "ieee"

    def __enter__(self) -> None:
        self._before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = self._wanted

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.fp32_precision = self._before


def _file_name(device: torch.device) -> str:
    if device.type == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        words: tuple[str, ...] = (
            "cpu",
            platform.node(),
            capability,
            f"{torch.get_num_threads()}-threads",
        )
    else:
        properties = torch.cuda.get_device_properties(device)
        words = (properties.name, str(properties.uuid))
    text = "-".join((*words, f"torch{torch.__version__}"))
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") + ".json"


def _read(path: Path) -> Peaks | None:
    try:
        if path.stat().st_size > _MAX_PEAKS_FILE_BYTES:
            return None
        return read_json(path.read_bytes(), _PeaksFile, str(path))[0].peaks.peaks()
    except (OSError, TableFormatError):
        return None


def _write(path: Path, peaks: Peaks) -> None:
    content = msgspec.to_builtins(_PeaksFile(_PEAKS_FORMAT, PeaksJson.of(peaks)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
    except OSError:
        return  # a read-only home folder: the next process measures again
