"""`Column`: one implementation of a matmul, compiled and tuned, with the kernel that it runs.

Columns are compiled under ``torch.no_grad``, in one process, and stay valid until dynamo is reset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from warmup.bench.matmul.product import product
from warmup.bench.matmul.report import COLUMNS
from warmup.core.errors import BuildError, SettingsError
from warmup.inductor.patches import Patches
from warmup.inductor.quiet import silence_autotuning
from warmup.serving.install import install
from warmup.table import Table

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Column:
    """One implementation of a matmul, which has run once, with a short name of its kernel.

    ``hits`` counts the decisions that a table answered while the matmul was compiled, None in
    columns without a table.
    """

    multiply: Multiply
    kernel: str = ""
    hits: int | None = None


@dataclass(frozen=True, slots=True)
class MatmulOperands:
    """A pair of row-major matrices, and the table to serve; *missing* is why there is no table."""

    a: torch.Tensor
    b: torch.Tensor
    table: Table | None = None
    missing: str = ""


def make_column(name: str, operands: MatmulOperands) -> Column:
    """Return the column called *name*, compiled and tuned for *operands*.

    Raises:
        SettingsError: this device cannot run the column.
        BuildError: there is no table, or the table missed the matmul.
        Exception: whatever compiling, tuning or running raises.
    """
    return _MAKERS[name](operands)


def _torch(operands: MatmulOperands) -> Column:
    torch.mm(operands.a, operands.b)
    return Column(torch.mm, "aten::mm")


def _triton(operands: MatmulOperands) -> Column:
    _check_triton(operands)
    from warmup.bench.matmul.triton_kernel import multiply, tuned_blocks

    multiply(operands.a, operands.b)
    return Column(multiply, tuned_blocks())


def _inductor_aten(operands: MatmulOperands) -> Column:
    return _inductor(operands, "ATEN")


def _inductor_triton(operands: MatmulOperands) -> Column:
    _check_triton(operands)
    return _inductor(operands, "TRITON")


def _table(operands: MatmulOperands) -> Column:
    if operands.table is None:
        raise BuildError(operands.missing or "there is no table")
    device = str(operands.a.device)
    with install(operands.table, on_miss="strict", device=device, quiet=True) as handle:
        compiled = torch.compile(product, dynamic=False)
        compiled(operands.a, operands.b)
    report = handle.report()
    hits = sum(report.hits.values())
    if not hits or report.misses:
        raise BuildError(
            f"the table answered {hits} decisions and missed {sum(report.misses.values())}",
            "build it for this product and this device",
        )
    rows = operands.table.rows
    return Column(compiled, ", ".join(rows[key].winner.short for key in report.hits), hits)


def _inductor(operands: MatmulOperands, backends: str) -> Column:
    with _quietly() as options:
        compiled = torch.compile(
            product,
            dynamic=False,
            options={
                **options,
                "max_autotune_gemm": True,
                "max_autotune_gemm_backends": backends,
            },
        )
        compiled(operands.a, operands.b)
    return Column(compiled)


@contextlib.contextmanager
def _quietly() -> Iterator[dict[str, bool]]:
    """Silence inductor's autotuning reports, and yield the compile options that do so."""
    patches = Patches()
    try:
        yield silence_autotuning(patches)
    finally:
        patches.restore()


def _check_triton(operands: MatmulOperands) -> None:
    if operands.a.device.type == "cpu":
        raise SettingsError("Triton has no CPU backend here")


_MAKERS: Final[Mapping[str, Callable[[MatmulOperands], Column]]] = dict(
    zip(COLUMNS, (_torch, _triton, _inductor_aten, _inductor_triton, _table), strict=True)
)
