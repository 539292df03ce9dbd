"""`layout_of` and `bias_form`: how keys spell operands, from their sizes and strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from warmup.keys.gemm import Dim, Layout

_TWO_DIMS: Final = 2  # dims


def layout_of(
    sizes: list[Any],
    strides: list[Any],
    is_equal: Callable[[Any, Any], bool],
    to_dim: Callable[[Any], Dim],
) -> Layout:
    """Return the layout of a matrix or batch of matrices; strides of dims of size 1 are ignored.

    *is_equal* returns whether two sizes are known to be equal, without adding a guard. *to_dim*
    returns a stride as a `Dim`.
    """
    rows, cols = sizes[-2:]
    row_stride, col_stride = strides[-2:]
    if is_equal(col_stride, 1) or is_equal(cols, 1):
        is_column = is_equal(cols, 1) and is_equal(row_stride, 1)
        natural = is_equal(rows, 1) or is_equal(row_stride, cols) or is_column
        order, leading = "row", None if natural else to_dim(row_stride)
    elif is_equal(row_stride, 1) or is_equal(rows, 1):
        order, leading = "col", None if is_equal(col_stride, rows) else to_dim(col_stride)
    else:
        order, leading = f"any({to_dim(row_stride)},{to_dim(col_stride)})", None
    batch = None
    if len(sizes) > _TWO_DIMS and not is_equal(sizes[0], 1):
        batch = None if is_equal(strides[0], rows * cols) else to_dim(strides[0])
    return Layout(order, leading, batch)


def bias_form(dims: int, sizes: Sequence[Any], strides: Sequence[Any]) -> str:
    """Return the form of a bias that is added to a result of *dims* dims: ``1d``, ``2d`` and so on.

    Dims of size 1 and of stride 0 do not count.
    """
    letters = "bmn"[-dims:]
    own_dims = [
        letter
        for letter, size, stride in zip(
            reversed(letters), reversed(sizes), reversed(strides), strict=False
        )
        if not _is(size, 1) and not _is(stride, 0)
    ]
    form = "".join(reversed(own_dims))
    return {"": "scalar", "n": "1d", "mn": "2d", "bmn": "3d"}.get(form, form)


def _is(size: Any, number: int) -> bool:
    """Whether *size*, which may be symbolic, is the constant *number*."""
    return isinstance(size, int) and size == number
