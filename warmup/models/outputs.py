"""`output_errors` and `worst_error`: how far the outputs of a model are from a reference."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.core.errors import ModelError
from warmup.core.roofline import dtype_name
from warmup.core.text import GIB, first_line
from warmup.measuring.reference import full_precision, wide_dtype
from warmup.models.loading import Inputs

_CHUNK: Final = 2**24  # elements compared at once in float64, 128 MiB for each of several copies


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in the nested *outputs*, in order."""
    leaves = torch.utils._pytree.tree_leaves(outputs)  # noqa: SLF001  torch's own tree walk has no public name
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def output_errors(expected: Any, actual: Any) -> list[float]:
    """Return the relative L2 error of each tensor of *actual* over its tensor of *expected*.

    Both are nested outputs of the same structure; dtypes and devices may differ. Elements that are
    infinite or NaN in both alike are equal; where one of two alone is finite the error is infinite.
    A reference of zeros has the absolute error. Tensors are compared by `dense_parts`.
    """
    pairs = zip(tensors_of(expected), tensors_of(actual), strict=True)
    return [_relative_error(reference, tensor) for reference, tensor in pairs]


def worst_error(expected: Any, actual: Any, tolerance: Mapping[str, float]) -> tuple[float, float]:
    """Return the relative L2 error and its limit of the tensor that is furthest above its limit."""
    errors, limits = output_errors(expected, actual), output_limits(expected, tolerance)
    worst = worst_tensor(errors, limits)
    return (0.0, 1.0) if worst is None else (errors[worst], limits[worst])


def output_limits(outputs: Any, tolerance: Mapping[str, float]) -> list[float]:
    """Return the limit of each tensor of *outputs* in *tolerance*, by dtype; 0 without a limit."""
    dtypes = (torch.float32 if one.is_quantized else one.dtype for one in tensors_of(outputs))
    return [tolerance.get(dtype_name(dtype), 0.0) for dtype in dtypes]


def worst_tensor(errors: list[float], limits: list[float]) -> int | None:
    """Return the number of the tensor with the largest of *errors* over *limits*; None for none."""
    pairs = zip(errors, limits, strict=True)
    shares = [error / limit if limit else math.inf if error else 0.0 for error, limit in pairs]
    return max(range(len(shares)), key=shares.__getitem__, default=None)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is a dense tensor of torch's own class, which has one storage."""
    is_own = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_own and tensor.layout is torch.strided and not tensor.is_nested


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return *tensor* as dense tensors: the tensors of a nested tensor, else a single tensor.

    A sparse tensor has its zeros in it, a quantized tensor is dequantized. A ModelError where there
    is no dense form.
    """
    try:
        if tensor.is_nested:
            return [*tensor.detach().unbind()]
        if tensor.is_quantized or type(tensor).dequantize is not torch.Tensor.dequantize:
            dense = tensor.dequantize()
        else:
            dense = tensor if tensor.layout is torch.strided else tensor.detach().to_dense()
        if not is_plain(dense):
            dense.detach().reshape(-1)[:1].to(torch.float64)  # as it is compared
    except Exception as error:
        what = f"tensor of {type(tensor).__name__}, layout {tensor.layout},"
        problem = f"a {what} has no dense form to compare: {first_line(error)}"
        raise ModelError(problem, "let the model return a dense tensor") from error
    return [dense]


def _relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    squares = distances = 0.0
    exacts, others = dense_parts(expected), dense_parts(actual)
    if [each.shape for each in exacts] != [each.shape for each in others]:
        return math.inf
    pairs = (
        zip(_chunks(exact), _chunks(other.to(exact.device)), strict=True)
        for exact, other in zip(exacts, others, strict=True)
    )
    for exact, other in itertools.chain.from_iterable(pairs):
        finite = exact.isfinite()
        same = (exact == other) | (exact.isnan() & other.isnan())
        if not bool((same | (finite & other.isfinite())).all()):
            return math.inf
        squares += float(exact.masked_fill(~finite, 0).square().sum())
        distances += float((other - exact).masked_fill(same, 0).square().sum())
    return math.sqrt(distances / squares) if squares else math.sqrt(distances)


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        yield torch.view_as_real(chunk.to(wide)) if wide is torch.complex128 else chunk.to(wide)


@dataclass(slots=True)
class NotedTensor:
    """A tensor before a call, and its version, which each write in place raises.

    A call may put another tensor into the ``attribute`` of the module ``holder``; that of an input,
    None, stays.
    """

    name: str
    tensor: torch.Tensor
    holder: nn.Module | None = None
    attribute: str = ""
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.tensor._version  # noqa: SLF001  torch's own name of the count of writes

    @property
    def current(self) -> Any:
        return self.tensor if self.holder is None else getattr(self.holder, self.attribute, None)

    @property
    def is_written(self) -> bool:
        return self.current is not self.tensor or self.tensor._version != self.version  # noqa: SLF001  as above

    def put_back(self, value: torch.Tensor) -> None:
        if self.holder is not None and self.current is not self.tensor:
            setattr(self.holder, self.attribute, self.tensor)
        with torch.no_grad():
            self.tensor.copy_(value)


def noted_tensors(
    module: nn.Module, calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]
) -> tuple[NotedTensor, ...]:
    """Return the tensors of *module* and of *calls*, but inference mode's: no write counts."""
    noted: list[NotedTensor] = []
    own = (("parameter", module.named_parameters()), ("buffer", module.named_buffers()))
    for kind, name, tensor in ((kind, *pair) for kind, pairs in own for pair in pairs):
        if not tensor.is_inference():
            holder, _, attribute = name.rpartition(".")
            place = module.get_submodule(holder), attribute
            noted.append(NotedTensor(f"{kind} {name}", tensor, *place))
    for args, kwargs in calls:
        named = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
        for argument, value in named.items():
            tensors = (each for each in tensors_of(value) if not each.is_inference())
            noted += [NotedTensor(f"input {argument}", tensor) for tensor in tensors]
    return tuple(noted)


def written(noted: Iterable[NotedTensor]) -> tuple[str, ...]:
    """Return the names of those of *noted* that were written since, such as ``buffer pos``."""
    return tuple(dict.fromkeys(one.name for one in noted if one.is_written))


@dataclass(slots=True)
class CallState:
    """The tensors that calls of a model were seen to write, each with the value to begin from."""

    _kept: list[tuple[NotedTensor, torch.Tensor]] = field(default_factory=list)
    _plain: dict[str, tuple[nn.Module, str, object]] = field(default_factory=dict)

    def keep_plain(self, module: nn.Module) -> None:
        """Keep the numbers, texts and flags that are attributes of *module* and those within."""
        self._plain = {
            f"{path}.{name}".removeprefix("."): (each, name, value)
            for path, each in module.named_modules()
            for name, value in vars(each).items()
            if isinstance(value, (int, float, str))
        }

    def changed_plain(self) -> list[str]:
        """Return those of `keep_plain` that calls have changed since, as ``step (1, then 2)``."""
        return [
            f"{name} ({before}, then {now})"
            for name, (module, attribute, before) in self._plain.items()
            if (now := getattr(module, attribute, None)) is not before and now != before
        ]

    def keep_written(self, noted: Iterable[NotedTensor]) -> tuple[str, ...]:
        """Keep the values that the written ones of *noted* have now, and return their names."""
        changed = [one for one in noted if one.is_written]
        self._kept = [
            (NotedTensor(one.name, now, one.holder, one.attribute), now.detach().clone())
            for one in changed
            if isinstance(now := one.current, torch.Tensor)
        ]
        return written(changed)

    def restore(self) -> None:
        for one, value in self._kept:
            one.put_back(value)

    def detached(self, output: Any) -> Any:
        """Return *output*, as a copy where calls write tensors: the output may be such a tensor."""
        if not self._kept:
            return output
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, output)  # noqa: SLF001  no public name


_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class WideRun:
    """The outputs of each call in higher precision, None with the reason in ``name``."""

    outputs: list[Any] | None
    name: str


def run_wide(
    module: nn.Module,
    calls: Sequence[Inputs],
    device: torch.device,
    available: Callable[[torch.device], int] | None = None,
) -> WideRun:
    """Return the outputs of *module*, uncompiled, in higher precision for each inputs of *calls*.

    That is float64 where all floating tensors are float32, float32 where some are narrower, on
    copies. It runs on *device*, or on the CPU where *available* (`available_bytes`) says that
    *device* is too small; without outputs where both are, or the model fails in that precision.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    inputs = [tensor for call in calls for tensor in tensors_of((call.args, call.kwargs))]
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
    """Return the bytes that can be allocated on *device*."""
    # On a GPU that is what is free and what torch has reserved and not used; on a CPU what Linux
    # calls available, and what the cgroup of this process leaves of it.
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
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        dtype = tensor.dtype
        if tensor.is_floating_point() and tensor.itemsize < wide.itemsize:
            dtype = wide
        elif dtype is torch.complex64 and wide is torch.float64:
            dtype = torch.complex128
        return tensor.detach().to(device, dtype)

    widened = {name: widen(tensor) for name, tensor in tensors.items()}
    made = (call.changed(widen) for call in calls)
    return [torch.func.functional_call(module, widened, each.args, each.kwargs) for each in made]
