"""Lower convolutions and grouped products for the stated H100, as rows say.

    echo '{"case": "patches", "tile": {"BLOCK_M": 128}}' | python cuda_selections.py

``tile`` is a part of the kwargs of the template that the row names; ``library`` names the library's
kernel instead; without both there is no row. ``on_miss`` is ``tune`` for a build, in which the
template with ``tile`` is the fastest. ``ranged`` makes the batch, or the rows, a range,
``backends`` are those of the policy, and ``earlier`` stands for a table that was built without
grouped products. The result has the lines of the generated code that launch kernels, the events,
and what was timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
import torch
from h100 import Case
from torch._inductor import config
from torch._inductor.kernel import mm_grouped
from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller
from torch.nn import functional

from warmup.core.rows import Family, Winner
from warmup.inductor import selections
from warmup.inductor.patches import Patches
from warmup.inductor.selections import Convolutions, GroupedProducts

LIBRARIES = {
    "convolution": Winner(Family.EXTERN, "aten::convolution"),
    "grouped_mm": Winner(Family.EXTERN, "aten::_grouped_mm"),
}
# Input, weight, and arguments; as in a ViT, in a network of images, and as SiglipVisionModel's.
SMALL = ((8, 64, 28, 28), (64, 64, 3, 3))
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "patches": ((8, 3, 518, 518), (768, 3, 14, 14), {"stride": 14}),
    "narrow": ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "siglip": ((1, 3, 384, 384), (1152, 3, 14, 14), {"stride": 14, "padding": "valid"}),
    "siglip of 8": ((8, 3, 384, 384), (1152, 3, 14, 14), {"stride": 14, "padding": "valid"}),
    "valid": (*SMALL, {"padding": "valid"}),
    "same": (*SMALL, {"padding": "same"}),
    "same, even": (SMALL[0], (64, 64, 4, 4), {"padding": "same"}),
    "same, dilated": (*SMALL, {"padding": "same", "dilation": 2}),
    "of one value": (*SMALL, {"stride": (2,), "padding": (1,)}),
    "of two values": (*SMALL, {"stride": (2, 1), "padding": (1, 0)}),
    "dilated": (*SMALL, {"dilation": (2,)}),
    "in groups": (SMALL[0], (64, 16, 3, 3), {"padding": 1, "groups": 4}),
    "of each channel": (SMALL[0], (64, 1, 3, 3), {"padding": 1, "groups": 64}),
    "of one point": (SMALL[0], (64, 64, 1, 1), {"stride": 2}),
    "without a batch": (SMALL[0][1:], SMALL[1], {"padding": (1,)}),
    "transposed": (*SMALL, {"stride": 2, "transposed": True}),
    "1d": ((8, 64, 400), (64, 64, 3), {"padding": "same"}),
    "1d, of each channel": ((8, 64, 400), (64, 1, 3), {"padding": 1, "groups": 64}),
    "1d, transposed": ((8, 64, 400), (64, 64, 3), {"stride": (2,), "transposed": True}),
    "3d": ((2, 16, 8, 28, 28), (32, 16, 2, 4, 4), {"stride": (2, 4, 4), "padding": "valid"}),
    "3d of one value": ((2, 16, 8, 28, 28), (32, 16, 3, 3, 3), {"padding": (1,)}),
    "3d of one point": ((2, 16, 8, 14, 14), (32, 16, 1, 1, 1), {}),
    "3d, transposed": ((2, 16, 8, 14, 14), (16, 32, 2, 2, 2), {"stride": 2, "transposed": True}),
}
# Sizes of both factors: the experts' weights as in Mixtral, and those of a backward.
GROUPS = {
    "experts": ((1024, 4096), (8, 512, 4096)),
    "weight gradients": ((512, 1024), (1024, 256)),
    "input gradients": ((8, 64, 512), (1024, 512)),
    "batches": ((8, 64, 512), (8, 256, 512)),
}
SELECTIONS = {kind.name: kind for kind in (Convolutions, GroupedProducts)}
TritonTemplateCaller.precompile = lambda _: None  # type: ignore[method-assign]  nothing runs


def on_the_cpu(operand: Any) -> torch.Tensor:
    return torch.zeros([int(size) for size in operand.get_size()], dtype=operand.get_dtype())


selections._random = on_the_cpu
torch.cuda.mem_get_info = lambda *_: (64 << 30, 80 << 30)
mm_grouped.create_offsets = lambda offsets, *_: on_the_cpu(offsets)
selections._offsets_like = lambda offsets, _ends: on_the_cpu(offsets)


Made = tuple[Callable[..., Any], list[Any]]


def convolution(name: str, shapes: Any, *, is_ranged: bool) -> Made:
    x, w, given = CONVOLUTIONS[name]
    words = dict(given)
    kind = "conv_transpose" if words.pop("transposed", False) else "conv"
    call = getattr(functional, f"{kind}{len(w) - 2}d")
    outputs = w[kind != "conv"]  # of transposed ones the second
    batch = fake_gpu.make_range(shapes, 2, x[0], hint=x[0]) if is_ranged else x[0]

    def convolve(given: Any, weight: Any, bias: Any) -> Any:
        return functional.relu(call(given, weight, bias, **words))

    return convolve, [h100.empty(batch, *x[1:]), h100.empty(*w), h100.empty(outputs)]


def product(name: str, shapes: Any, *, is_ranged: bool) -> Made:
    a, b = GROUPS[name]
    rows = fake_gpu.make_range(shapes, 2, a[0], hint=a[0]) if is_ranged else a[0]
    inputs = [h100.empty(rows, *a[1:]), h100.empty(*b)]
    if name != "batches":
        inputs.append(h100.empty(8, dtype=torch.int32))

    def multiply(given: Any, weights: Any, *offsets: Any) -> Any:
        left = given if name != "weight gradients" else given.clone()
        right = weights if name == "weight gradients" else weights.transpose(-2, -1)
        return torch.ops.aten._grouped_mm(left, right, *offsets)

    return multiply, inputs


def generate(case: Case) -> str:
    mode, name = h100.fakes(), case["case"]
    with mode:
        make = convolution if name in CONVOLUTIONS else product
        function, inputs = make(name, mode.shape_env, is_ranged=bool(case.get("ranged")))
    return h100.generate(h100.trace(function, inputs, mode), inputs, mode)


def listed(case: Case) -> list[tuple[str, list[Winner]]]:
    """Return the key of each selection in *case*, and the winners that inductor lists for it."""
    found: list[tuple[str, list[Winner]]] = []

    def wrap(original: Any) -> Any:
        def select(
            cache: Any, name: str, choices: Any, nodes: Any, layout: Any, *args: Any, **kw: Any
        ) -> Any:
            if (kind := SELECTIONS.get(name)) is not None:
                winners = [one for one in map(kind.winner_of, choices) if one is not None]
                found.append((kind.describe(choices, nodes, layout).key, winners))
            return original(cache, name, choices[:1], nodes, layout, *args, **kw)

        return select

    patches = Patches()
    patches.wrap(AlgorithmSelectorCache, "__call__", wrap)
    try:
        generate(case)
    finally:
        patches.restore()
    return found


def answer(case: Case) -> dict[str, Any]:
    """Generate the code of *case* under a table, and return what came of it."""
    tile = dict(case.get("tile", {})).items()
    rows: dict[str, Winner] = {}
    candidates: list[str] = []

    def has_tile(winner: Winner) -> bool:
        return bool(tile) and tile <= dict(winner.kwargs).items()

    if not case.get("ranged"):
        ((key, winners),) = listed(case)
        candidates = [str(winner) for winner in winners]
        if case.get("library") or (tile and "on_miss" not in case):
            library = LIBRARIES[key.partition(" ")[0]]
            rows = {key: next(filter(has_tile, winners), library)}
    tuner = h100.StatedTuner(lambda winner: 1.0 if has_tile(winner) else 2.0)
    with config.patch({"max_autotune_conv_backends": case.get("backends", "ATEN,TRITON")}):
        code, result = h100.serve(
            lambda: generate(case),
            rows,
            case.get("on_miss", "fallback"),
            tuner,
            searches=frozenset(() if case.get("earlier") else {"grouped_mm"}),
        )
    return {
        **result,
        "launches": h100.launches_in(code or ""),
        "candidates": candidates,
        "timed": tuner.timed,
    }


if __name__ == "__main__":
    h100.answer_each(answer)
