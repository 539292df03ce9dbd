"""What stands at the padding after an operation: each is run on zeros, and watched.

An operation may stand between padded weights when every operator that it calls computes element by
element (torch tags these ``pointwise``) from padded values and constants alone. Then what it makes
of a few zeros is what it makes of all padding.
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
# Untagged upstream, in some of the supported torch versions, although element by element.
_ZERO_KEEPING_OPS: Final = frozenset(
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
_UNSPELLED: Final = frozenset({_aten.clone.default, _aten.detach.default})
# Many dims, none of size 1, so that no view of the real value is a no-op on this one.
_SAMPLE: Final = (2, 3, 2, 3, 2, 5)


class LostZerosError(Exception):
    """Zeros at padded features do not stay zeros through an operation. Argument: why."""


@dataclass(frozen=True, slots=True)
class PaddedValues:
    """A sample of what stands at the padded features of a value, and how it was computed."""

    sample: torch.Tensor
    spelling: str

    @property
    def is_zero(self) -> bool:
        """Whether all of it is zero."""
        return not self.sample.any().item()


def made_padding(name: str, dtype: torch.dtype) -> PaddedValues:
    """Return the padding of what a Linear with zero rows makes; *name* spells it."""
    return PaddedValues(torch.zeros(_SAMPLE, dtype=dtype), name)


def passed_padding(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """Return what *node* makes of *known* values: `PaddedValues`, or a dtype or device of one.

    Raises:
        LostZerosError: it looks at sizes, does not compute element by element, uses a value that is
            not known, or cannot be run on the CPU.
    """
    unknown = [str(other) for other in node.all_input_nodes if other not in known]
    if unknown:
        raise LostZerosError(f"{_name(node)} also takes {', '.join(unknown)}")
    watch = _PaddingTracer([value for value in known.values() if isinstance(value, PaddedValues)])

    def value_of(other: fx.Node) -> Any:
        value = known[other]
        return value.sample if isinstance(value, PaddedValues) else value

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    try:
        with torch.no_grad(), watch:
            made = _call(node, args, kwargs)
    except LostZerosError as error:
        raise LostZerosError(f"{_name(node)}: {error}") from None
    except Exception as error:  # an operation may raise anything on what it does not expect
        said = str(error).partition("\n")[0]
        raise LostZerosError(f"{_name(node)} cannot be tried: {said}") from error
    if isinstance(made, (torch.dtype, torch.device)):
        return made
    if not isinstance(made, torch.Tensor) or made.shape != _SAMPLE:
        raise LostZerosError(f"{_name(node)} looks at the size or takes the features apart")
    return PaddedValues(made, watch.spelling_of(made))


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


class _PaddingTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped upstream
    """Refuses operators that are not pointwise, and spells what the others compute."""

    def __init__(self, known: Sequence[PaddedValues]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        # The tensors are kept, since the id of one that is gone may be another's.
        self._spelled = {id(each.sample): (each.sample, each.spelling) for each in known}

    def __torch_dispatch__(  # torch names it
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.pointwise not in func.tags and func not in _ZERO_KEEPING_OPS:
            raise LostZerosError(f"{func} does not compute element by element")
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        words = [self._word(value) for value in (*args, *kwargs.values())]
        name = func.overloadpacket.__name__.strip("_").replace("to_copy", "to")
        spelling = words[0] if func in _UNSPELLED else f"{name}({','.join(words)})"
        if len(spelling) > MAX_VIA_LENGTH:
            raise LostZerosError("what is computed is too long to be spelled in a key")
        self._spelled[id(made)] = (made, spelling)
        return made

    def spelling_of(self, value: torch.Tensor) -> str:
        """Return how *value* was computed."""
        _, spelling = self._spelled[id(value)]
        return spelling

    def _word(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) in self._spelled:
                return self.spelling_of(value)
            if value.dim():
                raise LostZerosError("uses a tensor that is not padded")
            value = value.item()  # a number, as torch hands it to an operator
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        return format_number(value) if isinstance(value, (int, float)) else str(value).lower()
