"""Keys of convolutions: their layouts, what is refused, and the work that they name."""

from __future__ import annotations

import pytest

from warmup.core.errors import ProblemError
from warmup.keys.convolution import CONVOLUTION, ConvolutionProblem, layout_of
from warmup.keys.registry import check_key, kind_of, work_of

PATCHES = (
    "convolution x=8x3x518x518 w=768x3x14x14 stride=14x14 padding=0x0 groups=1 bf16"
    " a=last b=last out=first"
)


def test_a_problem_is_spelled_as_its_key() -> None:
    """Sizes, stride, padding, groups, dtype and layouts, in that order."""
    problem = ConvolutionProblem(
        x=((8, 3, 518, 518), (804972, 1, 1554, 3)),
        w=((768, 3, 14, 14), (588, 1, 42, 3)),
        out=((8, 768, 37, 37), (1051392, 1369, 37, 1)),
        stride=(14, 14),
        padding=(0, 0),
        groups=1,
        dtype="bf16",
    )
    assert problem.key == PATCHES
    assert kind_of(PATCHES) is CONVOLUTION


def test_a_layout_is_named_by_its_strides() -> None:
    """Those of dims of size 1 do not count; gaps are spelled out."""
    for sizes, strides, layout in (
        ((2, 8, 4, 4), (128, 16, 4, 1), "first"),
        ((2, 8, 4, 4), (128, 1, 32, 8), "last"),
        ((2, 8, 4, 4), (256, 16, 4, 1), "any(256,16,4,1)"),
        ((1, 8, 4, 4), (999, 16, 4, 1), "first"),
        ((2, 1, 4, 4), (16, 1, 4, 1), "first"),
        ((2, 8, 5), (40, 1, 8), "last"),
    ):
        assert layout_of(sizes, strides) == layout


def test_a_single_stride_or_padding_is_that_of_every_dim() -> None:
    """Of 37 x 37 patches with 588 values each, 768 results; each tensor moves once."""
    work = work_of(PATCHES)
    assert work is not None
    outputs = 8 * 768 * 37 * 37
    assert work.flops == 2 * outputs * 588
    assert work.moved == 2 * (8 * 3 * 518 * 518 + 768 * 588 + outputs)
    # As in keys that were written where torch was given one value for several dims.
    one = PATCHES.replace("stride=14x14 padding=0x0", "stride=14 padding=0")
    assert work_of(one) == work_of(PATCHES)


def test_other_text_is_no_key() -> None:
    """Nor is a key with an epilogue: convolutions are timed alone."""
    for key in (
        PATCHES.replace("groups=1 ", ""),
        PATCHES.replace("a=last", "a=rows"),
        PATCHES.replace("8x3x518x518", "8x3"),
        f"{PATCHES} | epilogue=relu",
    ):
        with pytest.raises(ProblemError):
            check_key(key)
