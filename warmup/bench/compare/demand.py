"""What one eager call of a model asks of a device: operations, and bytes at least."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from warmup.bench.compare.comparison import Demand
from warmup.bench.compare.tensors import tensors_in

_aten = torch.ops.aten
_ATTENTION: Final = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
# These read rows of a weight, not all of it.
_GATHERS: Final = {"embedding", "index", "index_select", "gather"}


def demand_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Demand, tuple[str, ...]]:
    """Return what a call of *module* asks for, and a line about each number that is not known."""
    call = functools.partial(module, *args, **kwargs)
    flops, said = _counted("operations", functools.partial(count_flops, call))
    moved, also_said = _counted(
        "bytes", functools.partial(count_bytes, module, call, (args, kwargs))
    )
    return Demand(flops, moved), (*said, *also_said)


def count_flops(call: Callable[[], object]) -> int:
    """Return the floating-point operations of *call*, as torch counts them.

    Those of products, convolutions and attention; a causal mask saves none.

    Raises:
        Exception: whatever the call raises, or torch about a shape that it cannot count.
    """
    # Torch 2.11 refuses to count attention whose keys have fewer heads, and knows none on CPU.
    own = {getattr(_aten, name): _attention_flops for name in _ATTENTION}
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        call()
    return sum(counter.get_flop_counts()["Global"].values())


def count_bytes(module: nn.Module, call: Callable[[], object], inputs: object) -> int:
    """Return the bytes that *call* of *module* moves at least: weights, inputs, outputs, each once.

    Of the weights only what is read counts: of an embedding the rows that are looked up.

    Raises:
        Exception: whatever the call raises, or torch about a tensor without memory of its own.
    """
    reads = _WeightReads(module)
    with reads:
        output = call()
    return reads.total + _bytes_of(tensors_in(inputs)) + _bytes_of(tensors_in(output))


def _counted(what: str, count: Callable[[], int]) -> tuple[int | None, tuple[str, ...]]:
    try:
        return count(), ()
    except Exception as error:  # noqa: BLE001  torch cannot count what it does not know
        return None, (f"{what} cannot be counted ({type(error).__name__}: {error})",)


def _attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[2] * (width + value[3]))


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum({one.data_ptr(): one.numel() * one.element_size() for one in tensors}.values())


class _WeightReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts the bytes of parameters and buffers that operations read, each once."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        weights = [*module.parameters(), *module.buffers()]
        self._sizes = {_storage(one): one.untyped_storage().nbytes() for one in weights}
        self._read: dict[int, dict[object, int]] = defaultdict(dict)

    @property
    def total(self) -> int:
        """All bytes read; of one weight at most what it has."""
        read = self._read.items()
        return sum(min(self._sizes[place], sum(parts.values())) for place, parts in read)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not func.is_view:
            gathers = func.overloadpacket.__name__ in _GATHERS
            for one in tensors_in((args, kwargs)):
                if (place := _storage(one)) in self._sizes:
                    part = tensors_in(output)[0] if gathers else one
                    key = (part.data_ptr(), tuple(part.shape), tuple(part.stride()))
                    self._read[place][key] = part.numel() * part.element_size()
        return output


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
