"""What a key says of its problem: the least work, by kind, and the product it is about.

Where a size is a range the work is that of the upper end, which is the size that rows are timed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from warmup.core.roofline import Work, item_bytes
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.grouped import GROUPED, OF_EACH_GROUP, Over
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.keys.reduction import REDUCTION
from warmup.keys.registry import ingredients_of
from warmup.keys.split import SPLIT
from warmup.keys.text import parse_problem
from warmup.keys.weight import parse_weight

# Ops of one product whose operands are both in the key, by the name that keys give to them.
_ONE_PRODUCT: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "int_mm", "scaled_mm"})
_CPU_LINEARS: Final = frozenset({"linear_unary", "linear_binary", "packed_linear"})
_PRODUCT: Final = ("batch", "m", "n", "k", "a", "b")
_TWO_PRODUCTS: Final = "mm_plus_mm"
_BIAS_ALONG: Final = {"1d": "n", "2d": "mn", "3d": "bmn"}  # the dims along which a bias varies
_REGION_STEPS: Final = 64  # warmup/inductor/gemm/regions.py
_PASSES: Final = 2  # a loop over a reduction reads its input twice; an input may be written too


def product_of(key: str) -> str:
    """Return the product that a GEMM or a pad key is about, equal for both, without an epilogue."""
    named = ingredients_of(key)
    sizes = " ".join(f"{name}={named[name]}" for name in _PRODUCT if name in named)
    return f"{named['op']} {sizes} {named['dtype']}"


def gemm_work(key: str) -> Work | None:
    """Return the work of a GEMM key: operands, bias and result once, without the epilogue."""
    problem = parse_problem(key).at_upper_end()
    sizes = _sizes((problem.batch, problem.m, problem.n, problem.k))
    if sizes is None or problem.op not in _ONE_PRODUCT | _CPU_LINEARS | {_TWO_PRODUCTS}:
        return None
    batch, m, n, k = sizes
    products = 2 if problem.op == _TWO_PRODUCTS else 1
    dtype_b = problem.dtype_b or problem.dtype
    operands = m * k * item_bytes(problem.dtype) + k * n * item_bytes(dtype_b)
    moved = batch * (products * operands + m * n * item_bytes(problem.out))
    bias = _BIAS_ALONG.get(problem.bias or "")
    if bias is not None:
        extent = {"b": batch, "m": m, "n": n}
        moved += math.prod(extent[dim] for dim in bias) * item_bytes(problem.dtype)
    dtype = "tf32" if problem.fp32 == "tf32" else problem.dtype
    return Work(dtype, products * 2 * batch * m * n * k, moved)


def convolution_work(key: str) -> Work | None:
    """Return the work of a convolution key: input, weight and output once.

    A single stride or padding, as torch allows, is that of every dim.
    """
    named = CONVOLUTION.ingredients(key)
    x, w, stride, padding = (
        [int(size) for size in named[name].split("x")] for name in ("x", "w", "stride", "padding")
    )
    stride, padding = (each * (len(w) - 2 if len(each) == 1 else 1) for each in (stride, padding))
    out = [
        (size + 2 * margin - kernel) // step + 1
        for size, kernel, step, margin in zip(x[2:], w[2:], stride, padding, strict=True)
    ]
    written = x[0] * w[0] * math.prod(out)
    moved = (math.prod(x) + math.prod(w) + written) * item_bytes(named["dtype"])
    dtype = "tf32" if named.get("fp32") == "tf32" else named["dtype"]
    return Work(dtype, 2 * written * math.prod(w[1:]), moved)


def grouped_work(key: str) -> Work | None:
    """Return the work of a grouped key: each operand and the result once."""
    named = GROUPED.ingredients(key)
    groups, m, n, k = (int(named[name]) for name in ("groups", "m", "n", "k"))
    over = Over(named["over"])
    sizes = {"a": m * k, "b": k * n, "out": m * n}
    of_each = OF_EACH_GROUP[over]
    elements = {name: size * (groups if name in of_each else 1) for name, size in sizes.items()}
    read = (elements["a"] + elements["b"]) * item_bytes(named["dtype"])
    products = groups if over is Over.NOTHING else 1
    moved = read + elements["out"] * item_bytes(named["out"])
    return Work(named["dtype"], products * 2 * m * n * k, moved)


def pad_work(key: str) -> Work | None:
    """Return the work of a pad key: that of the product as it is, which padding only adds to."""
    named = PAD.ingredients(key)
    texts = (named.get(name, "1").rpartition("..")[2] for name in ("batch", "m", "n", "k"))
    sizes = [int(text) for text in texts if text]
    if len(sizes) < 4:  # noqa: PLR2004  batch, m, n and k
        return None
    batch, m, n, k = sizes
    size = item_bytes(named["dtype"])
    dtype = "tf32" if named.get("fp32") == "tf32" else named["dtype"]
    return Work(dtype, 2 * batch * m * n * k, batch * (m * k + k * n + m * n) * size)


def weight_work(key: str) -> Work | None:
    """Return the work of a weight key: weights, the widest input and the last outputs once."""
    structure, rows = parse_weight(key)
    if rows.high is None:
        return None
    m, features = rows.high, structure.features
    widths = sum(structure.inputs) + sum(structure.outputs)
    read = max(structure.inputs, default=features)
    written = sum(structure.outputs) or features
    dtype = "tf32" if structure.fp32 == "tf32" else structure.dtype
    moved = (widths * features + m * (read + written)) * item_bytes(structure.dtype)
    return Work(dtype, 2 * m * features * widths, moved)


def launch_work(key: str) -> Work | None:
    """Return the work of a launch key: bounds of its bytes; None without sizes or tensors.

    Inductor rounds the sizes in these keys up to powers of two, so each is more than half of what
    the key says. At least one tensor has all elements, and at most all of them have.
    """
    named = LAUNCH.ingredients(key)
    tensors = [item_bytes(word[1:]) for word in named["args"].split(",") if word.startswith("*")]
    sizes = [
        int(value)
        for name, value in named.items()
        if name not in ("kind", "kernel", "args", "source")
    ]
    if not sizes or not tensors:
        return None
    least = math.prod(size // 2 + 1 for size in sizes) * min(tensors)
    return Work("", None, least, most_moved=_PASSES * math.prod(sizes) * sum(tensors))


def reduction_work(key: str) -> Work | None:
    """Return the work of a reduction key: bounds of its bytes; None where it reads nothing.

    A range of rows is rounded up to a power of two. At least one of the buffers that are read has
    all elements, and at most all buffers have them.
    """
    named = REDUCTION.ingredients(key)
    reads, writes = (
        [item_bytes(dtype) for dtype in named[name].split(",") if dtype != "none"]
        for name in ("reads", "writes")
    )
    if not reads:
        return None
    x, r = int(named["x"]), int(named["r"])
    most = _PASSES * x * r * (sum(reads) + sum(writes))
    return Work("", None, (x // 2 + 1) * r * min(reads), most_moved=most)


def split_work(key: str) -> Work | None:
    """Return the work of a split key: bounds of its bytes; None where no input has all elements.

    What is timed is the region around the reduction, whose operators may each read and write the
    elements once more.
    """
    named = SPLIT.ingredients(key)
    reads = [item_bytes(dtype) for dtype in named["reads"].split(",") if dtype != "none"]
    if not reads:
        return None
    elements = int(named["x"]) * int(named["r"])
    most = _REGION_STEPS * _PASSES * elements * max(*reads, item_bytes(named["dtype"]))
    return Work("", None, elements * sum(reads), most_moved=most)


def _sizes(dims: Iterable[object]) -> list[int] | None:
    """Return *dims* as numbers, 1 for None; None where a range has no upper end."""
    sizes = []
    for dim in dims:
        text = "1" if dim is None else str(dim)
        if not text.isdecimal():
            return None
        sizes.append(int(text))
    return sizes
