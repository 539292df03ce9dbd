"""`OperandSets`: several sets of random operands and outputs for the calls of one trial."""

from __future__ import annotations

from typing import Final

import torch

from warmup.core.trial import Fill, TensorSpec, Trial

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
    256 MiB.

    Raises:
        torch.OutOfMemoryError: not even one set fits.
    """

    def __init__(
        self, trial: Trial, device: torch.device, seed: int, most: int = MAX_OPERAND_SETS
    ) -> None:
        self._trial = trial
        self.count = max(1, min(most, operand_room(device) // max(_bytes(trial), 1)))
        source = torch.Generator(device=device).manual_seed(seed)
        self._operands = [
            [_filled(spec, device, source) for spec in trial.operands] for _ in range(self.count)
        ]
        out = trial.out
        self._outs = [
            torch.empty(out.span, dtype=_dtype(out), device=device) for _ in range(self.count)
        ]

    def operands(self, number: int) -> list[torch.Tensor]:
        """Return the operands in the form that Triton templates take."""
        stored = self._operands[number % self.count]
        pairs = zip(stored, self._trial.operands, strict=True)
        # A template's generated code adds the offset itself, so it takes the base tensor.
        return [flat.as_strided(spec.sizes, spec.strides, 0) for flat, spec in pairs]

    def views(self, number: int) -> list[torch.Tensor]:
        """Return the operands in the form that library calls take: views at their offsets."""
        stored = self._operands[number % self.count]
        return [
            stored[view.base].as_strided(view.sizes, view.strides, view.offset)
            for view in self._trial.views
        ]

    def out(self, number: int, *, at_offset: bool = False) -> torch.Tensor:
        """Return the output tensor: the base for templates, *at_offset* for library calls."""
        spec = self._trial.out
        flat = self._outs[number % self.count]
        return flat.as_strided(spec.sizes, spec.strides, spec.offset if at_offset else 0)

    def poison(self) -> None:
        """Fill every output with a value that no correct result has: NaN or the largest integer."""
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


def _dtype(spec: TensorSpec) -> torch.dtype:
    return dtype_named(spec.dtype)


def _bytes(trial: Trial) -> int:
    return sum(spec.span * _dtype(spec).itemsize for spec in (*trial.operands, trial.out))


def operand_room(device: torch.device) -> int:
    """Return how many bytes all operand sets may take on *device*."""
    if device.type == "cpu":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return min(int(free * _SHARE_OF_MEMORY), _MAX_SETS_BYTES)


def _filled(spec: TensorSpec, device: torch.device, source: torch.Generator) -> torch.Tensor:
    """Return flat random memory for *spec*; kernels run faster on constant data than on real."""
    dtype, size = _dtype(spec), (spec.span,)
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
