"""`propagate_padding`: the values at padded features after an operation, found by running it.

An operation may stand between padded weights when every operator that it calls computes element by
element (torch tags these ``pointwise``) from padded values and constants alone. Its result for a
few zeros is then its result for all padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from warmup.core.dtypes import dtype_name
from warmup.keys.gemm import format_number

MAX_VIA_LENGTH: Final = 512
_aten = torch.ops.aten
# Element by element, but without the tag in some of the supported torch versions.
_UNTAGGED_POINTWISE_OPS: Final = frozenset(
    {
        _aten._to_copy.default,  # noqa: SLF001  its name
        _aten.detach.default,
        _aten.gelu.default,
        _aten.hardswish.default,
        _aten.hardswish_.default,
        _aten.leaky_relu.default,
        _aten.leaky_relu_.default,
    }
)
_IDENTITIES: Final = frozenset({_aten.clone.default, _aten.detach.default})
# Many dims, none of size 1: what changes the shape of real values changes this shape too.
_SAMPLE: Final = (2, 3, 2, 3, 2, 5)


class LostZerosError(Exception):
    """An operation may turn zeros at padded features into other values. Argument: why."""


@dataclass(frozen=True, slots=True)
class PaddedValues:
    """A sample of the padding of one value of the graph, and the expression that computes it."""

    sample: torch.Tensor
    expression: str

    @property
    def is_zero(self) -> bool:
        """Whether the whole sample is zero."""
        return not self.sample.any().item()


def make_padding(name: str, dtype: torch.dtype) -> PaddedValues:
    """Return the padding of the output of a padded Linear: zeros, with *name* as expression."""
    return PaddedValues(torch.zeros(_SAMPLE, dtype=dtype), name)


def propagate_padding(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """Return the result of *node* for *known* values: `PaddedValues`, or a dtype or device.

    Raises:
        LostZerosError: the operation reads sizes, does not compute element by element, uses a value
            that is not known, or cannot be run on the CPU.
    """
    unknown = [str(other) for other in node.all_input_nodes if other not in known]
    if unknown:
        raise LostZerosError(f"{_name(node)} also reads {', '.join(unknown)}")
    tracer = _PaddingTracer([value for value in known.values() if isinstance(value, PaddedValues)])

    def value_of(other: fx.Node) -> Any:
        value = known[other]
        return value.sample if isinstance(value, PaddedValues) else value

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    try:
        with torch.no_grad(), tracer:
            result = _call(node, args, kwargs)
    except LostZerosError as error:
        raise LostZerosError(f"{_name(node)}: {error}") from None
    except Exception as error:  # an operation may raise anything on unexpected shapes
        reason = str(error).partition("\n")[0]
        raise LostZerosError(f"{_name(node)} cannot be tried: {reason}") from error
    if isinstance(result, (torch.dtype, torch.device)):
        return result
    if not isinstance(result, torch.Tensor) or result.shape != _SAMPLE:
        raise LostZerosError(f"{_name(node)} reads the size or changes the shape")
    return PaddedValues(result, tracer.expression_of(result))


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


class _PaddingTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped upstream
    """Raises for operators that are not pointwise; keeps the expressions of the others."""

    def __init__(self, known: Sequence[PaddedValues]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        # Samples are kept alive, since a new tensor may get the id of a freed one.
        self._expressions = {
            id(values.sample): (values.sample, values.expression) for values in known
        }

    def __torch_dispatch__(  # torch names it
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.pointwise not in func.tags and func not in _UNTAGGED_POINTWISE_OPS:
            raise LostZerosError(f"{func} does not compute element by element")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        words = [self._word(value) for value in (*args, *kwargs.values())]
        name = func.overloadpacket.__name__.strip("_").replace("to_copy", "to")
        expression = words[0] if func in _IDENTITIES else f"{name}({','.join(words)})"
        if len(expression) > MAX_VIA_LENGTH:
            raise LostZerosError("the operations in between are too long for a key")
        self._expressions[id(result)] = (result, expression)
        return result

    def expression_of(self, value: torch.Tensor) -> str:
        """Return the expression that computes *value*."""
        _, expression = self._expressions[id(value)]
        return expression

    def _word(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) in self._expressions:
                return self.expression_of(value)
            if value.dim():
                raise LostZerosError("uses a tensor that is not padded")
            value = value.item()  # torch passes a number to an operator as a tensor without dims
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        return format_number(value) if isinstance(value, (int, float)) else str(value).lower()
