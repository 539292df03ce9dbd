"""`tma_candidates`: candidates of the persistent TMA templates, listed without inductor's option.

The option ``triton.enable_persistent_tma_matmul`` makes the lowering add guards on a dynamic M
while it lists templates, whichever candidate wins (torch/_inductor/utils.py,
use_triton_tma_template with add_guards, from 2.12 on). warmup does not set the option and adds the
candidates itself, without guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._inductor.kernel.mm import (
    get_scaling_options,
    mm_template,
    persistent_tma_mm_template,
    scaled_mm_device_tma_epilogue_scaling_template,
)
from torch._inductor.utils import can_use_tma
from torch._inductor.virtualized import V

_SCALED: Final = "scaled_mm"
_TEMPLATES: Final = {
    "mm": persistent_tma_mm_template,
    "addmm": persistent_tma_mm_template,
    _SCALED: scaled_mm_device_tma_epilogue_scaling_template,
}
TMA_UIDS: Final = frozenset(template.uid for template in _TEMPLATES.values())
_SCALED_OPERANDS: Final = 4  # two factors and two scales; the template takes no bias


@dataclass(frozen=True, slots=True)
class TmaCandidates:
    """Candidates of the op's persistent TMA template; falsy if the template does not apply."""

    handler: Any = None
    kernel_inputs: Any = None
    op_name: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The uid of the template that the op has, ``triton::...``."""
        return str(_TEMPLATES[self.op_name].uid)

    def __bool__(self) -> bool:
        return self.handler is not None

    def __iter__(self) -> Iterator[Any]:
        if self.handler is None:
            return iter(())
        candidates: Iterator[Any] = self.handler.get_ktc(
            self.kernel_inputs, _TEMPLATES[self.op_name], self.op_name, dict(self.overrides)
        )
        return candidates


def tma_candidates(
    handler: Any,
    kernel_inputs: Any,
    templates: list[Any],
    op_name: str,
    overrides: Mapping[str, Any] | None = None,
) -> TmaCandidates:
    """Return the TMA candidates for this GEMM if the lowering offers Triton but not TMA.

    *overrides* are the kwargs that the lowering gives to every candidate of the mm template.
    """
    uids = {template.uid for template in templates}
    if op_name not in _TEMPLATES or mm_template.uid not in uids or TMA_UIDS & uids:
        return TmaCandidates()
    if kernel_inputs.device_type != "cuda" or torch.version.hip is not None:
        return TmaCandidates()
    if not can_use_tma(*kernel_inputs.mat1mat2()):
        return TmaCandidates()
    # Inductor takes a single row for transposed (torch/_inductor/ir.py, Layout.is_transposed) and
    # would read it so: all 273 such candidates of three builds on an H200, torch 2.11, were wrong.
    rows = kernel_inputs.mnk_symbolic()[0]
    if V.graph.sizevars.statically_known_equals(rows, 1):
        return TmaCandidates()
    given = dict(overrides or {})
    if op_name == _SCALED:
        if kernel_inputs.count != _SCALED_OPERANDS:
            return TmaCandidates()
        scaling = _scaling_of(kernel_inputs)
        if scaling is None:
            return TmaCandidates()
        given |= scaling
    return TmaCandidates(handler, kernel_inputs, op_name, given)


def _scaling_of(kernel_inputs: Any) -> dict[str, Any] | None:
    """Return the kwargs that say how the factors are scaled, as the lowering of _scaled_mm does.

    None for sizes that it does not know: the lowering of torch.nn.functional.scaled_mm is told. The
    lowering offers the mm template for scales per tensor and per row alone.
    """
    a, b, *scales = kernel_inputs.nodes()
    try:
        of_a, of_b = get_scaling_options(a, b, *(scale.get_size() for scale in scales))
    except AssertionError:
        return None
    return {"SCALE_RECIPE_A": of_a.value, "SCALE_RECIPE_B": of_b.value}
