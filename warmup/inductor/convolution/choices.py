"""`key_of` and `winner_of`: inductor's choices for a convolution as a key and as winners."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._inductor.kernel.conv import conv2d_template, conv3d_template
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Winner
from warmup.inductor.gemm.choices import identify
from warmup.inductor.gemm.key import strides_of
from warmup.keys.convolution import ConvolutionProblem

_CONVOLUTION_TEMPLATES: Final = {
    f"triton_{one.name}": one for one in (conv2d_template, conv3d_template)
}
# What is tuned of a template. Its other kwargs follow from the convolution and its precision.
_TILE_WORDS: Final = re.compile(r"\b(BLOCK_[MNK]|num_stages|num_warps)=([0-9]+)")


def key_of(choices: Sequence[Any], inputs: Sequence[Any], layout: Any) -> str:
    """Return the key of the convolution of *inputs* for which inductor lists *choices*.

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
        stride, padding = (_whole(library.kwargs[name]) for name in ("stride", "padding"))
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
    ).key


def winner_of(choice: Any) -> Winner | None:
    """Return *choice* as a winner; None for a choice that a row cannot name."""
    template = _CONVOLUTION_TEMPLATES.get(choice.name.rpartition("_")[0])
    if not isinstance(choice, TritonTemplateCaller) or template is None:
        return identify(choice)
    tuned = sorted((name, int(value)) for name, value in _TILE_WORDS.findall(choice.description))
    return Winner(Family.TEMPLATE, template.uid, tuple(tuned), template.src_hash)


def _whole(sizes: Sequence[Any]) -> list[int]:
    return [int(size) for size in sizes]


def _fp32_precision() -> str:
    cudnn: Any = torch.backends.cudnn
    precision = str(cudnn.conv.fp32_precision)
    return "ieee" if precision == "none" else precision
