"""`WeightTape`: records what a compile computes from the weights of a layer.

While a layer is compiled with frozen weights, each operation on a weight is recorded, down to the
constants of the generated code. Code may depend on the layouts of weights, which dynamo guards, and
not on their values: a compile that reads a value, as an element or a comparison, is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import freezing
from torch._inductor.constant_folding import ConstantFolder
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from warmup.inductor.layers.form import UnshareableLayerError
from warmup.inductor.layers.packing import Computed, ConstantOrigin, Packing, WeightAt, layout_of
from warmup.inductor.layers.place import readable
from warmup.inductor.patches import Patches

_REAL_TENSORS: Final = (torch.Tensor, nn.Parameter, nn.Buffer)  # no fake tensors
_READ_NO_VALUES: Final = frozenset({"aten.is_pinned.default", "mkldnn.data_ptr.default"})


class WeightTape:
    """Records what is computed from weights alone, in the thread that made the tape.

    Tensors are told apart by their memory, since torch may make several objects for one; the tape
    keeps each of them, so that no memory is used twice. ``refusal`` says why a graph depends on the
    values of weights, None if it does not.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._weights: dict[str, torch.Tensor] = {}
        self._origins: dict[Any, ConstantOrigin] = {}
        self._kept: list[torch.Tensor] = []
        self._patches = Patches()
        self._thread = threading.get_ident()

    def add_weight(self, tensor: torch.Tensor, place: str) -> None:
        """Note that *tensor* is the weight at *place*."""
        if (known := self._origins.get(_identity(tensor))) is not None:
            assert isinstance(known, WeightAt)
            self.refusal = f"has one memory for {readable(known.place)} and {readable(place)}"
        if tensor.is_inference():
            self.refusal = f"has the inference tensor {readable(place)}, whose changes do not show"
        self._weights[place] = tensor
        self._keep(tensor, WeightAt(place))

    def record(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note that *function* returned *result*, if weights are among its arguments."""
        leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
        origins = [self._origin_of(leaf) for leaf in leaves]
        if not any(origin is not None for origin in origins) or str(function) in _READ_NO_VALUES:
            return
        schema = getattr(function, "_schema", None)
        results = pytree.tree_leaves(result)
        if any(isinstance(each, FakeTensor) for each in results):
            return  # the layouts of results were asked for
        if schema is not None and schema.is_mutable:
            self.refusal = f"has a weight that {function} writes into where it is packed"
        elif not results or not all(type(each) in _REAL_TENSORS for each in results):
            self.refusal = f"is compiled for the values of its weights, which {function} reads"
        else:
            inputs = tuple(
                leaf if origin is None else origin
                for leaf, origin in zip(leaves, origins, strict=True)
            )
            for index, tensor in enumerate(results):
                if self._origin_of(tensor) is None:
                    self._keep(tensor, Computed(function, inputs, tree, index))

    def packing(self, constants: Mapping[str, torch.Tensor]) -> Packing:
        """Return where *constants* come from; made again, they are the same byte for byte.

        Memory of oneDNN and MKL is not compared: its bytes cannot be read.

        Raises:
            UnshareableLayerError: the origin of a constant is not known, or it is another constant
                when it is made again.
        """
        origins: dict[str, ConstantOrigin] = {}
        for name, tensor in constants.items():
            origin = self._origin_of(tensor)
            if origin is None:
                raise UnshareableLayerError(f"has a constant of unknown origin, {name}")
            origins[name] = origin
        packing = Packing(origins, {name: layout_of(each) for name, each in constants.items()})
        again = packing.constants(self._weights)
        for name, tensor in constants.items():
            if tensor.layout is torch.strided and not _has_same_bytes(tensor, again[name]):
                raise UnshareableLayerError(f"has a constant that cannot be made again, {name}")
        return packing

    def __enter__(self) -> None:
        self._patches.wrap(ConstantFolder, "_deduce_value", self._wrap_folding)
        self._patches.wrap(freezing, "freeze", self._wrap_compile)
        self._patches.wrap(compile_fx_module, "fx_codegen_and_compile", self._wrap_compile)

    def __exit__(self, *_: object) -> None:
        self._patches.restore()

    def _wrap_folding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def deduce(folder: Any, node: Any) -> Any:
            result = original(folder, node)
            if node.op == "call_function" and threading.get_ident() == self._thread:
                args, kwargs = folder.fetch_args_kwargs_from_env(node)
                self.record(node.target, args, kwargs, result)
            return result

        return deduce

    def _wrap_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_recorded(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            with _OperationRecorder(self):
                return original(*args, **kwargs)

        return compile_recorded

    def _keep(self, tensor: torch.Tensor, origin: ConstantOrigin) -> None:
        self._origins[_identity(tensor)] = origin
        self._kept.append(tensor)

    def _origin_of(self, value: Any) -> ConstantOrigin | None:
        return self._origins.get(_identity(value)) if type(value) in _REAL_TENSORS else None


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows a tape each operation of this thread on tensors, but for those of constant folding."""

    def __init__(self, tape: WeightTape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        self._tape.record(func, args, kwargs, result)
        return result


def _identity(tensor: torch.Tensor) -> Any:
    """Return what two tensors have in common only if all their elements are the same memory."""
    if tensor.is_mkldnn or tensor.layout is not torch.strided or not tensor.numel():
        return id(tensor)
    memory = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return (*memory, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _has_same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    one, other = (
        each.detach().flatten().contiguous().view(torch.uint8) for each in (first, second)
    )
    return torch.equal(one, other)
