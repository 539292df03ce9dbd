"""`Convolutions`: inductor's selection for a convolution; row kind ``convolution``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor.kernel import conv
from torch._inductor.select_algorithm import ExternKernelCaller

from warmup.core.errors import ProblemError
from warmup.core.roofline import dtype_name
from warmup.inductor.gemm.key import strides_of
from warmup.inductor.selections import SelectionChoices, TensorMakers, random_factors
from warmup.inductor.versions import Version
from warmup.keys.convolution import ConvolutionProblem
from warmup.keys.question import Answers

_TEMPLATES: Final = ("conv2d_template", "conv3d_template", "depthwise_conv1d_template")


class Convolutions:
    """A convolution by the library or a template (kernel/conv.py)."""

    name: Final = "convolution"
    templates: Final[Mapping[str, Any]] = {
        f"triton_{one.name}": one
        for one in (getattr(conv, name, None) for name in _TEMPLATES)
        if one is not None  # earlier versions of torch have none for depthwise convolutions
    }

    def is_kept(self, _searched: frozenset[str]) -> bool:
        """Return True: in tables of earlier builds the policy's option leaves the library."""
        return True

    def describe(
        self, choices: Sequence[Any], inputs: Sequence[Any], layout: Any
    ) -> ConvolutionProblem:
        """Return the problem of the convolution of *inputs* for which inductor lists *choices*.

        Raises:
            ProblemError: a size is a range, or no library call says stride and padding.
        """
        library = next((one for one in choices if isinstance(one, ExternKernelCaller)), None)
        if library is None or "stride" not in library.kwargs:
            raise ProblemError("no library call says stride and padding")
        x, w = inputs[:2]
        try:
            tensors = [(_whole(one.get_size()), _whole(strides_of(one))) for one in (x, w)]
            out = _whole(layout.size), _whole(layout.stride)
            dims = len(tensors[0][0]) - 2
            stride, padding = (
                _of_each(library.kwargs[name], dims) for name in ("stride", "padding")
            )
        except TypeError as error:
            raise ProblemError(f"a size of the convolution is a range: {error}") from error
        dtype = x.get_dtype()
        return ConvolutionProblem(
            x=tensors[0],
            w=tensors[1],
            out=out,
            stride=stride,
            padding=padding,
            groups=int(library.kwargs["groups"]),
            dtype=dtype_name(dtype),
            fp32=_fp32_precision() if dtype == torch.float32 else None,
        )

    def tensors_for(self, inputs: Sequence[Any], _makers: TensorMakers) -> list[torch.Tensor]:
        """Return a random input and a random weight."""
        return random_factors(inputs, math.prod(_whole(inputs[1].get_size()[1:])))


def convolution_choices(version: Version, answers: Answers) -> SelectionChoices:
    """Return the hooks of the row kind ``convolution``."""
    return SelectionChoices(Convolutions(), version, answers)


def _whole(sizes: Sequence[Any]) -> list[int]:
    return [int(size) for size in sizes]


def _of_each(values: Sequence[Any], dims: int) -> list[int]:
    """Return *values* for each of *dims* dims; torch allows a single value for all."""
    return _whole(values) * (dims if len(values) == 1 else 1)


def _fp32_precision() -> str:
    cudnn: Any = torch.backends.cudnn
    precision = str(cudnn.conv.fp32_precision)
    return "ieee" if precision == "none" else precision
