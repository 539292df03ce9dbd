"""`identify` and `force_choice`: from inductor's choice to a `Winner`, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._inductor.codegen.cpp_template_kernel import CppTemplateCaller
from torch._inductor.codegen.subgraph import SubgraphTemplate
from torch._inductor.kernel.mm import (
    get_scaling_options,
    mm_template,
    persistent_tma_mm_template,
    scaled_mm_device_tma_epilogue_scaling_template,
)
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import (
    DataProcessorChoiceCallerWrapper,
    ExternKernelCaller,
    ExternKernelChoice,
    TritonTemplate,
)
from torch._inductor.utils import can_use_tma
from torch._inductor.virtualized import V

from warmup.core.errors import MissReason
from warmup.core.rows import Family, KwargValue, Winner, portable_kwargs
from warmup.inductor.gemm.blas import BlasChoice
from warmup.inductor.gemm.key import PostOp
from warmup.inductor.options import tuning_is_on
from warmup.inductor.patches import Function
from warmup.inductor.versions import Version

# Kwargs that follow from the device, the operands or the precision settings, not from tuning.
_NOT_TUNABLE = frozenset(
    {
        *("ALLOW_TF32", "NUM_SMS", "TMA_SIZE", "USE_FAST_ACCUM"),
        *("SCALE_RECIPE_A", "SCALE_RECIPE_B", "TILE_SIZE_A", "TILE_SIZE_B"),
    }
)


def identify(choice: Any) -> Winner | None:
    """Return *choice* as a `Winner`; None for a choice that a row cannot force."""
    while isinstance(choice, DataProcessorChoiceCallerWrapper):
        choice = choice._wrapped
    origin = getattr(choice, "annotations", {}).get("ktc")
    if origin is not None and not isinstance(origin.template, ExternKernelChoice):
        return identify_template(origin)
    if isinstance(choice, ExternKernelCaller):
        if isinstance(choice.choice, BlasChoice):
            return Winner(Family.BLAS, choice.choice.uid, portable_kwargs(choice.kwargs) or ())
        return Winner(Family.EXTERN, choice.choice.uid)
    if isinstance(choice, CppTemplateCaller):
        blocking = getattr(choice.template, "register_blocking", None)
        if blocking is None:
            return None
        kwargs = {
            "block_m": blocking.block_m,
            "block_n": blocking.block_n,
            "block_k": blocking.block_k,
            "num_threads": choice.template.num_threads,
        }
        return Winner(Family.CPP, f"cpp::{choice.template.name}", tuple(sorted(kwargs.items())))
    return None


def identify_template(origin: Any) -> Winner | None:
    """Return the template candidate *origin* as a `Winner`, before its code is generated."""
    template = origin.template
    kwargs = portable_kwargs(origin.params.to_kwargs())
    if kwargs is None:
        return None
    if isinstance(template, TritonTemplate):
        return Winner(Family.TEMPLATE, template.uid, kwargs, template.src_hash)
    if isinstance(template, SubgraphTemplate):
        return Winner(Family.SUBGRAPH, template.uid, kwargs)
    return None


def is_library(choice: Any) -> bool:
    winner = identify(choice)
    return winner is not None and winner.family is Family.EXTERN


def post_op_of(choices: list[Any]) -> PostOp | None:
    """Return the post-op of the library call among *choices*; None when it has none."""
    # Pattern lowerings pass it as keyword arguments of the mkldnn call
    # (torch/_inductor/mkldnn_lowerings.py).
    for choice in choices:
        if isinstance(choice, ExternKernelCaller):
            attr = choice.kwargs.get("attr")
            if not isinstance(attr, str) or attr == "none":
                return None
            scalars = tuple(
                value
                for value in choice.kwargs.get("scalars") or ()
                if isinstance(value, (int, float))
            )
            return PostOp(attr, scalars, str(choice.kwargs.get("algorithm") or ""))
    return None


def force_choice(version: Version, winner: Winner, base: Any) -> Any | MissReason:
    """Return the template choice with the kwargs of *winner*, or the reason for refusing them."""
    # *base* is any choice of the same template for the same operands; it provides what depends on
    # the operands (extra kwargs, adjusted inputs, layout). The table is not trusted: only numbers
    # may differ from the kwargs of *base*. Strings, which inductor pastes into kernel source, and
    # kwargs that follow from device or precision must be equal, and claims about K must be true.
    if winner.source_hash is not None and winner.source_hash != base.template.src_hash:
        return MissReason.TEMPLATE_CHANGED
    wanted = dict(winner.kwargs)
    own = base.params.to_kwargs()
    if wanted.keys() != own.keys():
        return MissReason.TEMPLATE_CHANGED
    for name, value in wanted.items():
        is_number = isinstance(value, int) and isinstance(own[name], int)
        if value != own[name] and (not is_number or name in _NOT_TUNABLE):
            return MissReason.CHOICE_REJECTED
    if not _divides_k(wanted, base):
        return MissReason.CHOICE_REJECTED
    return KernelTemplateChoice(
        base.template, version.template_params(wanted), base.extra_kwargs, base.layout, base.inputs
    )


def _divides_k(wanted: Mapping[str, KwargValue], base: Any) -> bool:
    k_split, block_k = wanted.get("k_split"), wanted.get("BLOCK_K")
    divisor = k_split if k_split is not None else block_k if wanted.get("EVEN_K") is True else None
    if divisor is None:
        return True
    k = base.inputs.mnk_symbolic()[2]
    if not isinstance(divisor, int) or divisor <= 0 or getattr(k, "free_symbols", None):
        return False
    return int(k) % divisor == 0


@dataclass(slots=True)
class DeferredCppChoices:
    """A deferred call of ``CppGemmTemplate.add_choices``: it generates code and packs weights."""

    call: Callable[[list[Any]], Any]

    def generate(self) -> list[Any]:
        choices: list[Any] = []
        self.call(choices)
        return choices


def generate_deferred(choices: list[Any]) -> list[Any]:
    generated: list[Any] = []
    for choice in choices:
        generated.extend(choice.generate() if isinstance(choice, DeferredCppChoices) else [choice])
    return generated


def choice_of(choices: list[Any], winner: Winner) -> Any | None:
    candidates = choices
    if winner.family is Family.CPP:
        candidates = [
            choice
            for deferred in choices
            if isinstance(deferred, DeferredCppChoices)
            for choice in deferred.generate()
        ]
    ready = (choice for choice in candidates if not isinstance(choice, DeferredCppChoices))
    return next((choice for choice in ready if identify(choice) == winner.choice), None)


def library_or_first(name: str, choices: list[Any]) -> Any:
    """Return the library call of default mode, else the first library call, else the first choice.

    Default mode calls ``addmm`` with the bias as given. Max-autotune expands the bias first, which
    costs ``aten::addmm`` a copy, and offers ``bias_addmm`` to avoid it (kernel/mm.py).
    """
    ready = [choice for choice in choices if not isinstance(choice, DeferredCppChoices)]
    library = [choice for choice in ready if is_library(choice)]
    for uid in (f"aten::bias_{name}", f"aten::{name}"):
        for choice in library:
            if identify(choice) == Winner(Family.EXTERN, uid):
                return choice
    return library[0] if library else generate_deferred(choices)[0]


def with_library(
    original: Function, cache: Any, name: str, choices: list[Any], *args: Any, **kw: Any
) -> Any:
    """Call *original*, an inductor's selection, as default mode does: nothing is measured."""
    offered = [library_or_first(name, choices)] if choices and tuning_is_on() else choices
    return original(cache, name, generate_deferred(offered), *args, **kw)


_SCALED: Final = "scaled_mm"
_TEMPLATES: Final = {
    "mm": persistent_tma_mm_template,
    "addmm": persistent_tma_mm_template,
    _SCALED: scaled_mm_device_tma_epilogue_scaling_template,
}
TMA_UIDS: Final = frozenset(template.uid for template in _TEMPLATES.values())
_SCALED_OPERANDS: Final = 4  # two factors and two scales; the template takes no bias


def tma_template(
    kernel_inputs: Any, templates: list[Any], op_name: str
) -> tuple[Any, dict[str, Any]] | None:
    """Return the persistent TMA template for this GEMM, with kwargs that say how it is scaled."""
    # None where the template does not apply, or *templates* have no Triton, or have it already.
    uids = {template.uid for template in templates}
    if op_name not in _TEMPLATES or mm_template.uid not in uids or TMA_UIDS & uids:
        return None
    if kernel_inputs.device_type != "cuda" or torch.version.hip is not None:
        return None
    # Inductor takes a single row for transposed (torch/_inductor/ir.py, Layout.is_transposed) and
    # would read it so: all 273 such candidates of three builds on an H200, torch 2.11, were wrong.
    rows = kernel_inputs.mnk_symbolic()[0]
    is_single = V.graph.sizevars.statically_known_equals(rows, 1)
    if is_single or not can_use_tma(*kernel_inputs.mat1mat2()):
        return None
    if op_name != _SCALED:
        return _TEMPLATES[op_name], {}
    is_biased = kernel_inputs.count != _SCALED_OPERANDS
    scaling = None if is_biased else _scaling_of(kernel_inputs)
    return None if scaling is None else (_TEMPLATES[op_name], scaling)


def _scaling_of(kernel_inputs: Any) -> dict[str, Any] | None:
    # The lowering offers the mm template for scales per tensor and per row alone.
    a, b, *scales = kernel_inputs.nodes()
    try:
        of_a, of_b = get_scaling_options(a, b, *(scale.get_size() for scale in scales))
    except AssertionError:
        return None
    return {"SCALE_RECIPE_A": of_a.value, "SCALE_RECIPE_B": of_b.value}
