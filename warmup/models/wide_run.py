"""`run_wide`: the outputs of a model in higher precision, with the same weights and inputs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.core.error_text import first_line
from warmup.core.units import GIB
from warmup.measuring.reference import full_precision, wide_dtype
from warmup.models.loading import Inputs

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class WideRun:
    """The outputs of a model in higher precision: one for each call, on the device that ran them.

    ``name`` says what was run where (``float32 eager on cpu``), or why ``outputs`` is None.
    """

    outputs: list[Any] | None
    name: str


def run_wide(
    module: nn.Module,
    calls: Sequence[Inputs],
    device: torch.device,
    available: Callable[[torch.device], int] | None = None,
) -> WideRun:
    """Return the outputs of *module*, uncompiled, in higher precision for each inputs of *calls*.

    That is float64 where all floating tensors are float32, float32 where some are narrower. Weights
    and inputs are converted copies: *module* is as before. It runs on *device*, or on the CPU where
    the memory of *device* is too small. Without outputs where both are, or where the model fails in
    that precision. *available* returns the free bytes of a device, `available_bytes` by default.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    leaves = [leaf for call in calls for leaf in _leaves((call.args, call.kwargs))]
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    floating = [each.dtype for each in (*tensors.values(), *inputs) if each.is_floating_point()]
    if not floating:
        return WideRun(None, "the model has no floating tensor")
    wide = min(map(wide_dtype, floating), key=lambda dtype: dtype.itemsize)
    needed = sum(each.numel() * max(each.itemsize, wide.itemsize) for each in tensors.values())
    name = str(wide).removeprefix("torch.")
    reasons = []
    for place in dict.fromkeys((device, torch.device("cpu"))):
        free = (available or available_bytes)(place)
        if needed > free:
            reasons.append(f"it needs {needed / GIB:.1f} GiB, {place} has {free / GIB:.1f} GiB")
            continue
        try:
            with full_precision():
                outputs = _run(module, tensors, calls, place, wide)
            return WideRun(outputs, f"{name} eager on {place}")
        except (torch.OutOfMemoryError, MemoryError):
            reasons.append(f"{place} is out of memory")
        except Exception as error:  # noqa: BLE001  the user's model, in a precision it may not know
            reasons.append(f"on {place}: {first_line(error)}"[:200])
            break
        release_memory()
    return WideRun(None, f"no {name} run: {'; '.join(reasons)}")


def available_bytes(device: torch.device) -> int:
    """Return the bytes that can be allocated on *device*.

    On a GPU that is what is free and what torch has reserved and not used; on a CPU what Linux
    calls available, and what the cgroup of this process leaves of it.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    amounts = [2**62]
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        line = next(each for each in _MEMINFO.read_text().splitlines() if "MemAvailable" in each)
        amounts.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # no limit reads "max"
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        amounts.append(max(0, int(limit) - int(used)))
    return min(amounts)


def release_memory() -> None:
    """Free tensors in reference circles, and give torch's unused memory back to the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _run(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    calls: Sequence[Inputs],
    device: torch.device,
    wide: torch.dtype,
) -> list[Any]:
    def widen(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.is_floating_point() and leaf.itemsize < wide.itemsize:
            return leaf.detach().to(device, wide)
        if leaf.dtype is torch.complex64 and wide is torch.float64:
            return leaf.detach().to(device, torch.complex128)
        return leaf.detach().to(device)

    widened = {name: widen(tensor) for name, tensor in tensors.items()}
    outputs = []
    for call in calls:
        args, kwargs = torch.utils._pytree.tree_map(widen, (call.args, call.kwargs))  # noqa: SLF001  no public name
        outputs.append(torch.func.functional_call(module, widened, args, kwargs))
    return outputs


def _leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)  # noqa: SLF001  as above
