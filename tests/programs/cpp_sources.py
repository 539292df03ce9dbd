"""Generate the code of equal layers from rows of the C++ template.

    python cpp_sources.py torch '[{"layers": 8, "sizes": [16, 48], "dtype": "bfloat16"}]'

No compiler is started. With ``torch`` all sources are written as torch does, with ``warmup`` as an
attached table has them written. The result has for each case the code of each size, without the
addresses of the weights, which are a comment in it. With ``ranged`` a size stands for all from 2 to
64; with ``mixed`` every other layer has other constants.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._inductor import config, select_algorithm
from torch._inductor.codegen import cpp_template_kernel
from torch._inductor.codegen.common import KernelTemplate
from torch._inductor.graph import GraphLowering

from warmup.core.events import Emitter
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.inductor import connect
from warmup.inductor.gemm.choices import identify, is_library, post_op_of
from warmup.inductor.gemm.key import describe
from warmup.keys.gemm import CPU_LINEAR
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

Selector = select_algorithm.AlgorithmSelectorCache
EVIDENCE = Evidence(time_us=1.0, library_us=None, runner_up=None, runner_up_us=None, tried=1)
OPTIONS = {"max_autotune_gemm": True, "freezing": True, "max_autotune_gemm_backends": "ATEN,CPP"}
WIDTH, INNER = 64, 160
ADDRESS = re.compile(r"^(\w+ = None  # device.*) \w+$", re.MULTILINE)
HOOKED = (
    (cpp_template_kernel.CppTemplateKernel, "render"),
    (KernelTemplate, "_template_from_string"),
    (cpp_template_kernel, "parse_expr_with_index_symbols"),
)


class Layer(nn.Module):
    """An FFN with a residual, its inner features times *scale*; its last product has a bias."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.up(x)) * self.scale)


class GeneratedError(Exception):
    """The code is generated; nothing is compiled."""


def generate(
    layers: int, sizes: list[int], dtype: torch.dtype, *, ranged: bool = False, mixed: bool = False
) -> list[str]:
    """Return the code that inductor generates for each of *sizes*."""
    codes: list[str] = []

    def take(code: str) -> None:
        codes.append(ADDRESS.sub(r"\1", code))
        raise GeneratedError

    torch._dynamo.reset()
    scales = (0.5 if mixed and index % 2 else 1.0 for index in range(layers))
    model = nn.Sequential(*map(Layer, scales)).to(dtype).eval()
    compiled = torch.compile(model, dynamic=False)
    GraphLowering.save_output_code = staticmethod(take)
    for size in sizes:
        x = torch.ones(size, WIDTH, dtype=dtype)
        if ranged:
            torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        try:
            with torch.no_grad():
                compiled(x)
        except Exception as error:
            if len(codes) == sizes.index(size):
                raise error from None
    GraphLowering.save_output_code = None
    return codes


def template_rows(
    sizes: list[int], dtype: torch.dtype, *, ranged: bool = False, mixed: bool = False
) -> dict[str, Row]:
    """Return a row with the C++ template for every product of a layer."""
    rows: dict[str, Row] = {}
    original = Selector.__call__

    def select(
        cache: Any, name: str, choices: list[Any], nodes: Any, layout: Any, *args: Any, **kw: Any
    ) -> Any:
        post_op = post_op_of(choices) if name in CPU_LINEAR else None
        winners: list[Winner] = [one for one in map(identify, choices) if one is not None]
        key = describe(name, list(nodes), layout, post_op).key
        rows[key] = next(Row(one, EVIDENCE) for one in winners if one.family is Family.CPP)
        library = [choice for choice in choices if is_library(choice)]
        return original(cache, name, library[:1], nodes, layout, *args, **kw)

    with patch.object(Selector, "__call__", select), config.patch(OPTIONS):
        generate(1 + mixed, sizes, dtype, ranged=ranged, mixed=mixed)
    return rows


def run(way: str, layers: int, sizes: list[int], dtype: str, **options: bool) -> dict[str, Any]:
    """Generate the code under a table whose rows all have the C++ template."""
    kind = getattr(torch, dtype)
    rows = template_rows(sizes, kind, **options)
    own = [vars(owner)[name] for owner, name in HOOKED]
    lookup = Lookup(rows, OnMiss.STRICT, Emitter([]))
    attachment = connect().attach(lookup, OPTIONS, "test")
    try:
        if way == "torch":
            for (owner, name), original in zip(HOOKED, own, strict=True):
                setattr(owner, name, original)
        code = generate(layers, sizes, kind, **options)
    finally:
        attachment.detach()
    return {"code": code, "is_restored": [vars(owner)[name] for owner, name in HOOKED] == own}


if __name__ == "__main__":
    answers = [run(sys.argv[1], **case) for case in json.loads(sys.argv[2])]
    sys.stdout.write(json.dumps(answers) + "\n")
