"""`demand_of`: the operations of an eager call of a model, and the bytes it moves at least."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from warmup.bench.compare.comparison import Demand
from warmup.bench.compare.tensors import tensors_in
from warmup.core.dtypes import dtype_name

_aten = torch.ops.aten
_ATTENTION: Final = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
# Operations that read rows of a weight, not all of it.
_GATHERS: Final = {"embedding", "index", "index_select", "gather"}


def demand_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Demand, tuple[str, ...]]:
    """Return the `Demand` of a call of *module*, and a remark for each number that is unknown."""
    call = functools.partial(module, *args, **kwargs)
    counting = _ProductDtypes()
    with counting:
        flops, flop_remarks = _counted("operations", functools.partial(count_flops, call))
    moved, byte_remarks = _counted(
        "bytes", functools.partial(count_bytes, module, call, (args, kwargs))
    )
    return Demand(flops, moved, counting.dtypes), (*flop_remarks, *byte_remarks)


def count_flops(call: Callable[[], object]) -> int:
    """Return the operations of *call* in products, as torch counts them.

    GEMMs, convolutions and attention count; a causal mask does not lower the count.

    Raises:
        Exception: any error of the call, or of torch for a shape that it cannot count.
    """
    with FlopCounterMode(display=False, custom_mapping=_own_counts()) as counter:
        call()
    return sum(counter.get_flop_counts()["Global"].values())


def count_bytes(module: nn.Module, call: Callable[[], object], inputs: object) -> int:
    """Return the bytes that *call* of *module* moves at least: weights, inputs, outputs, each once.

    Only the parts of weights that are read count: of an embedding, the rows looked up.

    Raises:
        Exception: any error of the call, or of torch for a tensor without storage.
    """
    reads = _WeightReads(module)
    with reads:
        output = call()
    return reads.total + _bytes_of(tensors_in(inputs)) + _bytes_of(tensors_in(output))


def _counted(what: str, count: Callable[[], int]) -> tuple[int | None, tuple[str, ...]]:
    try:
        return count(), ()
    except Exception as error:  # noqa: BLE001  torch may raise anything for an unknown operation
        return None, (f"{what} cannot be counted ({type(error).__name__}: {error})",)


def _attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[2] * (width + value[3]))


def _int_mm_flops(left: Sequence[int], right: Sequence[int], **_: Any) -> int:
    return 2 * left[0] * left[1] * right[1]


def _own_counts() -> dict[Any, Callable[..., int]]:
    """Return how to count the operations that torch 2.11 counts wrongly, or not at all.

    It refuses attention whose keys have fewer heads, and knows no attention on CPU and no product
    of integers.
    """
    attention = {getattr(_aten, name): _attention_flops for name in _ATTENTION}
    return {**attention, _aten._int_mm: _int_mm_flops}  # noqa: SLF001  its only name


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    sizes = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}
    return sum(sizes.values())


class _ProductDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Notes the dtype of the first operand of each operation that `count_flops` counts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._counted = {*flop_registry, *_own_counts()}
        self._dtypes: set[str] = set()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes so far, sorted."""
        return tuple(sorted(self._dtypes))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in self._counted:
            self._dtypes.add(dtype_name(tensors_in((args, kwargs))[0].dtype))
        return func(*args, **(kwargs or {}))


class _WeightReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts the bytes of parameters and buffers that operations read, each part once."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        weights = [*module.parameters(), *module.buffers()]
        self._sizes = {_storage(weight): weight.untyped_storage().nbytes() for weight in weights}
        self._read: dict[int, dict[object, int]] = defaultdict(dict)

    @property
    def total(self) -> int:
        """All bytes read; for each weight at most its size."""
        read = self._read.items()
        return sum(min(self._sizes[storage], sum(parts.values())) for storage, parts in read)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not func.is_view:
            gathers = func.overloadpacket.__name__ in _GATHERS
            for operand in tensors_in((args, kwargs)):
                if (storage := _storage(operand)) in self._sizes:
                    part = tensors_in(output)[0] if gathers else operand
                    key = (part.data_ptr(), tuple(part.shape), tuple(part.stride()))
                    self._read[storage][key] = part.numel() * part.element_size()
        return output


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
