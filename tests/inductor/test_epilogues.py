"""The text of epilogues, read from graphs that torch decomposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from warmup.inductor.gemm.key import epilogue_of

nn = torch.nn.functional


def both(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y.relu(), y.sum()


def times_its_sine(y: torch.Tensor) -> torch.Tensor:
    return y * y.sin()


CASES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "silu": (lambda x, w, o: nn.silu(x @ w), ["silu"]),
    "gelu": (lambda x, w, o: nn.gelu(x @ w), ["gelu"]),
    "gelu_tanh, then a product": (
        lambda x, w, o: nn.gelu(x @ w, approximate="tanh") * o,
        ["gelu_tanh,mul(bf16[16,64])"],
    ),
    "argument order": (lambda x, w, o: o + torch.relu(x @ w), ["relu,add(bf16[16,64])"]),
    "a view is no step": (lambda x, w, o: (x @ w).view(1, 16, 64) + o, ["add(bf16[16,64])"]),
    "a cast that stays": (lambda x, w, o: (x @ w).float(), ["to(f32)"]),
    "two GEMMs, one chain": (
        lambda x, w, o: nn.silu(x @ w) * (x @ w),
        ["silu,mul(bf16[16,64])", "mul(bf16[16,64])"],
    ),
    "needed twice": (lambda x, w, o: both(x @ w), ["none"]),
    "read twice without a name": (
        lambda x, w, o: times_its_sine(x @ w) - o,
        ["mul(sin(x),x),sub(bf16[16,64])"],
    ),
}


def test_the_text_of_an_epilogue_is_canonical() -> None:
    """The chain of each GEMM in the graph has the names people use, whatever torch decomposes."""
    for name, (function, expected) in CASES.items():
        with FakeTensorMode():
            shapes = ((16, 32), (32, 64), (16, 64))
            inputs = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
            graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs).graph
        assert [
            epilogue_of(node) for node in graph.nodes if node.name.startswith("mm")
        ] == expected, name
