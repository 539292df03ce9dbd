"""`tma_candidates`: candidates of the persistent TMA template, listed without inductor's option.

The option ``triton.enable_persistent_tma_matmul`` makes the lowering add guards on a dynamic M
while it lists templates, whichever candidate wins (torch/_inductor/utils.py,
use_triton_tma_template with add_guards, from 2.12 on). warmup does not set the option and adds the
candidates itself, without guards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.kernel.mm import mm_template, persistent_tma_mm_template
from torch._inductor.utils import can_use_tma
from torch._inductor.virtualized import V

_OPS = ("mm", "addmm")


@dataclass(frozen=True, slots=True)
class TmaCandidates:
    """The persistent TMA template's candidates for a GEMM; falsy if the template does not apply."""

    handler: Any = None
    kernel_inputs: Any = None
    op_name: str = ""

    uid = persistent_tma_mm_template.uid

    def __bool__(self) -> bool:
        return self.handler is not None

    def __iter__(self) -> Iterator[Any]:
        if self.handler is None:
            return iter(())
        candidates: Iterator[Any] = self.handler.get_ktc(
            self.kernel_inputs, persistent_tma_mm_template, self.op_name
        )
        return candidates


def tma_candidates(
    handler: Any, kernel_inputs: Any, templates: list[Any], op_name: str
) -> TmaCandidates:
    """Return the TMA candidates for this GEMM if the lowering offers Triton but not TMA."""
    uids = {template.uid for template in templates}
    if op_name not in _OPS or mm_template.uid not in uids or persistent_tma_mm_template.uid in uids:
        return TmaCandidates()
    if kernel_inputs.device_type != "cuda" or torch.version.hip is not None:
        return TmaCandidates()
    if not can_use_tma(*kernel_inputs.nodes()[-2:]):
        return TmaCandidates()
    # Inductor takes a single row for transposed (torch/_inductor/ir.py, Layout.is_transposed) and
    # would read it so: all 273 such candidates of three builds on an H200, torch 2.11, were wrong.
    rows = kernel_inputs.mnk_symbolic()[0]
    if V.graph.sizevars.statically_known_equals(rows, 1):
        return TmaCandidates()
    return TmaCandidates(handler, kernel_inputs, op_name)
