"""`Column`: one implementation of a matmul, compiled and tuned, with the kernel that it runs.

Columns are compiled under ``torch.no_grad``, in one process, and stay valid until dynamo is reset.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from warmup.bench.matmul.product import ProductOfWeight, product
from warmup.bench.matmul.report import CPP_COLUMN, TABLE_COLUMN, TF32_COLUMN, TORCH_COLUMN
from warmup.core.errors import BuildError, SettingsError
from warmup.inductor.artifacts import with_own_code
from warmup.inductor.host_parts import CompiledFunction, freezing_weights
from warmup.inductor.patches import Patches
from warmup.inductor.quiet import silence_autotuning
from warmup.serving.install import install
from warmup.table import Table

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Column:
    """One implementation of a matmul, which has run once, with a short name of its kernel.

    ``hits`` counts the decisions that a table answered while the matmul was compiled, None in
    columns without a table, and ``is_unstable`` is whether a row that answered is flagged so.
    ``compiled`` is the compiled function, None in columns without one.
    """

    multiply: Multiply
    kernel: str = ""
    hits: int | None = None
    is_unstable: bool = False
    compiled: CompiledFunction | None = None


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


def _torch_tf32(operands: MatmulOperands) -> Column:
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return torch.mm(a, b)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    multiply(operands.a, operands.b)
    return Column(multiply, "aten::mm, TF32")


def _inductor_aten(operands: MatmulOperands) -> Column:
    return _inductor(operands, "ATEN")


def _inductor_triton(operands: MatmulOperands) -> Column:
    _check_triton(operands)
    return _inductor(operands, "TRITON")


def _inductor_cpp(operands: MatmulOperands) -> Column:
    return _inductor(operands, "CPP")


def _table(operands: MatmulOperands) -> Column:
    if operands.table is None:
        raise BuildError(operands.missing or "there is no table")
    device = str(operands.a.device)
    with install(operands.table, on_miss="strict", device=device, quiet=True) as handle:
        column = _compiled(operands, TABLE_COLUMN, {})
    report = handle.report()
    hits = sum(report.hits.values())
    if not hits or report.misses:
        raise BuildError(
            f"the table answered {hits} decisions and missed {sum(report.misses.values())}",
            "build it for this product and this device",
        )
    rows = [operands.table.rows[key] for key in report.hits]
    return replace(
        column,
        kernel=", ".join(row.winner.short for row in rows),
        hits=hits,
        is_unstable=any(row.evidence.is_unstable for row in rows),
    )


def _inductor(operands: MatmulOperands, backends: str) -> Column:
    is_cpu = operands.a.device.type == "cpu"
    with _quietly() as quiet, freezing_weights() if is_cpu else contextlib.nullcontext():
        options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": backends}
        return _compiled(operands, backends.lower(), {**quiet, **options})


def _compiled(operands: MatmulOperands, name: str, options: dict[str, Any]) -> Column:
    """Return the product compiled with *options*, on a CPU with ``b`` as a constant weight.

    Its code object, called *name*, is its own, so that a call checks its own guards only.
    """
    a, b = operands.a, operands.b
    if a.device.type == "cpu":
        weighted = ProductOfWeight(b)
        entry = with_own_code(weighted, name)
        function = CompiledFunction(entry, {"args": (a,), "kwargs": {}, "model": weighted})
        compiled = torch.compile(entry, dynamic=False, options=options or None)

        def multiply(a: torch.Tensor, _b: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = compiled(a)
            return output
    else:
        entry = types.FunctionType(product.__code__.replace(co_name=name), product.__globals__)
        function = CompiledFunction(entry, {"a": a, "b": b})
        multiply = torch.compile(entry, dynamic=False, options=options or None)
    with function.recording():
        multiply(a, b)
    return Column(multiply, compiled=function)


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


_MAKERS: Final[Mapping[str, Callable[[MatmulOperands], Column]]] = {
    TORCH_COLUMN: _torch,
    TF32_COLUMN: _torch_tf32,
    "triton": _triton,
    "inductor-aten": _inductor_aten,
    "inductor-triton": _inductor_triton,
    CPP_COLUMN: _inductor_cpp,
    TABLE_COLUMN: _table,
}
