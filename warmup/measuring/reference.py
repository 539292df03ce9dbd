"""`reference_of`: the expected result of a GEMM; `judge_output`: whether an output is near it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from warmup.core.rows import Rejection
from warmup.core.trial import Fill, TensorSpec, Trial

# `OperandSets`: several sets of random operands and outputs for the calls of one trial.

MAX_OPERAND_SETS: Final = 64  # calls of one batch
_SHARE_OF_MEMORY: Final = 0.25  # of what is free
_MAX_SETS_BYTES: Final = 8 * 2**30  # more than any device reads during one batch
_CPU_BYTES: Final = 256 * 2**20
_INTEGER_RANGE: Final = (0, 8)  # some are indices
_INT8_RANGE: Final = (-128, 128)  # quantized values
_SMALLEST_POSITIVE: Final = 0.5


class OperandSets:
    """Operands and outputs for one trial, in several sets; set numbers wrap around.

    All sets together take at most a quarter of the device's free memory and at most 8 GiB; on a CPU
    256 MiB. Where not even one set fits, torch's OutOfMemoryError is raised.
    """

    fixed: frozenset[int] = frozenset()

    def __init__(
        self, trial: Trial, device: torch.device, seed: int, most: int = MAX_OPERAND_SETS
    ) -> None:
        self._trial = trial
        made = (*trial.operands, trial.out)
        needed = sum(spec.span * dtype_named(spec.dtype).itemsize for spec in made)
        self.count = max(1, min(most, operand_room(device) // max(needed, 1)))
        source = torch.Generator(device=device).manual_seed(seed)
        self._operands = [
            [_filled(spec, device, source) for spec in trial.operands] for _ in range(self.count)
        ]
        out = trial.out
        self._outs = [
            torch.empty(out.span, dtype=dtype_named(out.dtype), device=device)
            for _ in range(self.count)
        ]

    def operands(self, number: int) -> list[torch.Tensor]:
        stored = self._operands[number % self.count]
        pairs = zip(stored, self._trial.operands, strict=True)
        # A template's generated code adds the offset itself, so it takes the base tensor.
        return [flat.as_strided(spec.sizes, spec.strides, 0) for flat, spec in pairs]

    def views(self, number: int) -> list[torch.Tensor]:
        stored = self._operands[number % self.count]
        return [
            stored[view.base].as_strided(view.sizes, view.strides, view.offset)
            for view in self._trial.views
        ]

    def out(self, number: int, *, at_offset: bool = False) -> torch.Tensor:
        spec = self._trial.out
        flat = self._outs[number % self.count]
        return flat.as_strided(spec.sizes, spec.strides, spec.offset if at_offset else 0)

    def poison(self) -> None:
        for flat in self._outs:
            flat.fill_(poison_of(flat.dtype))


def poison_of(dtype: torch.dtype) -> float:
    """Return the value that marks an unwritten element of *dtype*."""
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def dtype_named(name: str) -> torch.dtype:
    """Return the torch dtype called *name*, such as ``bfloat16``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def operand_room(device: torch.device) -> int:
    """Return how many bytes all operand sets may take on *device*."""
    if device.type == "cpu":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return min(int(free * _SHARE_OF_MEMORY), _MAX_SETS_BYTES)


def _filled(spec: TensorSpec, device: torch.device, source: torch.Generator) -> torch.Tensor:
    """Return flat random memory for *spec*; kernels run faster on constant data than on real."""
    dtype, size = dtype_named(spec.dtype), (spec.span,)
    if not dtype.is_floating_point:
        bounds = _INT8_RANGE if dtype is torch.int8 else _INTEGER_RANGE
        flat = torch.randint(*bounds, size, device=device, generator=source)
        return flat.to(dtype)
    is_narrow = dtype.itemsize == 1  # torch generates no random values in 8 bits
    flat = torch.empty(size, dtype=torch.float16 if is_narrow else dtype, device=device)
    flat.normal_(generator=source)
    if spec.fill is Fill.POSITIVE:
        flat.abs_().add_(_SMALLEST_POSITIVE)
    return flat.to(dtype)


# The names under which `torch._scaled_mm` is called.
_aten: Final = torch.ops.aten
_SCALED_MM_NAMES: Final = (torch._scaled_mm, _aten._scaled_mm, _aten._scaled_mm.default)  # noqa: SLF001
_ELEMENT_FACTOR: Final = 10  # an element may deviate by this many tolerances times the RMS
# Of quantized outputs, for which no policy has a tolerance: about two times what rounding alone
# gives. The bare product of random operands would overflow these dtypes.
NARROW_TOLERANCE: Final[Mapping[str, float]] = {"f8_e4m3fn": 5e-2, "f8_e5m2": 1e-1}


def reference_of(trial: Trial, operands: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the expected result of *trial* for *operands*, in `wide_dtype`."""
    # None when there is no reference for the trial's op or for the layout of its operands.
    if any(operand.layout is not torch.strided for operand in operands):
        return None  # packed for mkldnn
    wide = wide_dtype(operands[1].dtype)  # a factor, of every op: scales and biases may be wider
    with full_precision():
        return _widened_gemm(trial, [operand.to(wide) for operand in operands])


def widened(out: torch.Tensor) -> torch.Tensor:
    return out.to(wide_dtype(out.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the reference precision: float32 for narrower floats, float64 for float32 and ints."""
    # float64 holds the products of integers exactly.
    is_narrow = dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize
    return torch.float32 if is_narrow else torch.float64


def _widened_gemm(trial: Trial, wide: list[torch.Tensor]) -> torch.Tensor | None:
    match trial.op, wide:
        case (("mm" | "bmm" | "int_mm"), [a, b]):
            return torch.matmul(a, b)
        case (("addmm" | "baddbmm"), [bias, a, b]):
            return trial.beta * bias + trial.alpha * torch.matmul(a, b)
        case "mm_plus_mm", [a, b, c, d]:
            return torch.matmul(a, b) + torch.matmul(c, d)
        case "scaled_mm", [a, b, scale_a, scale_b, *bias]:
            return _dequantized(a, b, scale_a, scale_b, *bias)
    return None


def _dequantized(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor | None:
    if not _spans(scale_a, a.shape[0], 1) or not _spans(scale_b, 1, b.shape[1]):
        return None
    product = torch.matmul(a * scale_a, b * scale_b)
    return product if bias is None else product + bias


def _spans(scale: torch.Tensor, rows: int, cols: int) -> bool:
    return scale.numel() == 1 or tuple(scale.shape) == (rows, cols)


def _unwritten(out: torch.Tensor) -> torch.Tensor:
    if out.dtype.is_floating_point:
        return out.isnan()
    is_narrow = out.dtype.itemsize == 1
    return (
        torch.zeros_like(out, dtype=torch.bool) if is_narrow else out == int(poison_of(out.dtype))
    )


def _count(is_marked: torch.Tensor) -> int:
    # Adding truth values copies them as int64, of four times the memory of a narrow output; mostly
    # there are none to add.
    return int(is_marked.sum()) if bool(is_marked.any()) else 0


class _Dequantizing(TorchFunctionMode):
    """Computes `torch._scaled_mm` with operands of any dtype, in float32 or in float64.

    The result is not rounded to the dtype that the call asks for.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        compute = _wide_scaled_mm if func in _SCALED_MM_NAMES else func
        return compute(*args, **(kwargs or {}))


def _wide_scaled_mm(
    input: torch.Tensor,  # noqa: A002  torch's name
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *_: object,
    **__: object,
) -> torch.Tensor:
    operands = [one for one in (input, mat2, scale_a, scale_b, bias) if one is not None]
    is_double = torch.float64 in (input.dtype, mat2.dtype)
    wide = torch.float64 if is_double else torch.float32
    product = _dequantized(*(one.to(wide) for one in operands))
    if product is None:
        raise NotImplementedError("_scaled_mm with scales of blocks has no reference")
    return product


def judge_output(
    out: torch.Tensor, reference: torch.Tensor, tolerance: float
) -> tuple[float, Rejection | None, str]:
    """Return the largest element error of *out*, and the reason and message of a rejection if any.

    The error is in units of the reference's root mean square (RMS). *out* is wrong when its
    relative L2 distance is above *tolerance*, or when one element deviates by more than ten times
    *tolerance* times the RMS: a small wrong part hardly shows in a norm. Where the rest of its row
    and column is large, the RMS there counts: products with a scale for each row and column are as
    inexact as they are large. In 8 bits, one unit of an element's own rounding is no error (an
    eighth of a large ``float8_e4m3fn``), and neither is the largest value of the dtype in place of
    a larger one.
    """
    if not reference.dtype.is_floating_point:  # what a region rounded to integers
        reference = reference.to(torch.float64)
    is_narrow = out.dtype.itemsize == 1 and out.dtype is not torch.bool
    if is_narrow and out.dtype.is_floating_point:  # conversions saturate
        limits = torch.finfo(out.dtype)
        reference = reference.clamp(limits.min, limits.max)
    count = _count(_unwritten(out) & reference.isfinite())
    if count:
        return float("inf"), Rejection.UNWRITTEN, f"{count} of {out.numel()} elements"
    norm = reference.norm().item()
    scale = norm / max(reference.numel(), 1) ** 0.5 or 1.0
    errors = out.to(reference.dtype, copy=True)  # the one copy: outputs may be gigabytes
    errors -= reference
    distance = errors.norm().item() / (norm or 1.0)
    errors.abs_()
    if is_narrow:  # one unit of its own rounding
        is_float = out.dtype.is_floating_point
        errors -= torch.finfo(out.dtype).eps * reference.abs() if is_float else 1.0
    worst = max(errors.max().item(), 0.0) / scale if out.numel() else 0.0
    if distance <= tolerance < worst / _ELEMENT_FACTOR:
        errors /= _local_rms(reference, scale).clamp_(min=scale)
        worst = errors.max().item()
    if distance <= tolerance and worst <= _ELEMENT_FACTOR * tolerance:
        return worst, None, ""
    message = f"relative L2 error {distance:.2e}, largest element error {worst:.2e} RMS"
    return worst, Rejection.WRONG, message


def _local_rms(reference: torch.Tensor, rms: float) -> torch.Tensor:
    """Return the RMS around each element: of its row times that of its column, without the element.

    Both are over *rms*, that of the whole. A row is along the last dimension, a column through all
    others.
    """
    rows = reference.reshape(-1, reference.shape[-1] if reference.dim() else 1)
    squares = (rows / rms).square()  # products of squares would leave float32's range
    around = torch.ones_like(squares)
    for dim in (0, 1):
        others = max(squares.shape[dim] - 1, 1)
        around *= (squares.sum(dim, keepdim=True) - squares).clamp_(min=0.0) / others
    return (around.sqrt() * rms).reshape(reference.shape)


def judge_like(
    out: torch.Tensor, expected: torch.Tensor, tolerance: float | None
) -> tuple[float, Rejection | None, str]:
    """Return what `judge_output` does, for an *expected* result of the same precision."""
    # Integers must be equal, but for 1 in 8 bits (rounded results), and so must elements that are
    # infinite or NaN; elements that both left at the poison are equal. Without *tolerance* the
    # other elements are not compared.
    if not out.dtype.is_floating_point:
        is_rounded = out.dtype in (torch.int8, torch.uint8)
        distance = (out.to(torch.int16) - expected.to(torch.int16)).abs() if is_rounded else None
        count = _count(out != expected if distance is None else distance > 1)
        message = f"{count} of {out.numel()} elements differ{' by more than one' * is_rounded}"
        return (float("inf"), Rejection.WRONG, message) if count else (0.0, None, "")
    is_narrow = out.dtype.itemsize < torch.float32.itemsize
    wide, wanted = (out.float(), expected.float()) if is_narrow else (out, expected)
    finite = wanted.isfinite()
    is_odd = (wide != wanted) & ~(wide.isnan() & wanted.isnan()) & ~(finite & wide.isfinite())
    if count := _count(is_odd):
        unwritten = bool((wide.isnan() & finite).any())
        rejection = Rejection.UNWRITTEN if unwritten else Rejection.WRONG
        return float("inf"), rejection, f"{count} of {out.numel()} elements"
    if tolerance is None:
        return 0.0, None, ""
    if not bool(finite.all()):
        wide, wanted = wide[finite], wanted[finite]
    return judge_output(wide.to(out.dtype), wanted, tolerance)  # its dtype says how it was rounded


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute matmuls and convolutions in full precision while it is open.

    Those of float32 are not computed in TF32, and products of 8-bit floats (`torch._scaled_mm`) are
    products of what they stand for: operands times scales, in float32 or wider.
    """
    torch_backends: Any = torch.backends
    gpu, dnn, cpu = torch_backends.cuda, torch_backends.cudnn, torch_backends.mkldnn
    with fp32_precision("ieee", gpu.matmul, dnn.conv, cpu.matmul, cpu.conv), _Dequantizing():
        yield


@contextlib.contextmanager
def fp32_precision(precision: str, *backends: Any) -> Iterator[None]:
    """Compute float32 with *precision* in *backends*, those of torch, while it is open."""
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = precision
    try:
        yield
    finally:
        for backend, own in zip(backends, before, strict=True):
            backend.fp32_precision = own
