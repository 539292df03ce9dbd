"""Torch's own learned heuristic for padding: called as torch's pass calls it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._inductor.fx_passes import pad_mm

from warmup.core.dtypes import torch_name
from warmup.inductor.pad_mm.torch_heuristic import _context_of, torch_pad_heuristic
from warmup.keys.pad_text import parse_padding

for_an_h100 = pytest.mark.skipif(
    torch.__version__.startswith("2.11"), reason="torch 2.11 has no heuristic for H100s"
)
KEYS = (
    "pad mm m=2048 n=1281 k=3420 bf16 a=row b=col",
    "pad mm m=2048 n=1281 k=3421 bf16 a=col b=row free=a",
    "pad mm m=4097 n=4096 k=4099 f32 a=row b=row free=ab fp32=ieee",
)


@pytest.mark.parametrize("key", KEYS)
def test_the_heuristic_is_told_what_torchs_pass_tells(key: str) -> None:
    """Each feature of torch's own context, for tensors of these sizes and strides, is the same."""
    problem = parse_padding(key)
    m, n, k = problem.m.low, problem.n.low, problem.k.low
    placed: dict[str, Any] = {
        "dtype": getattr(torch, torch_name(problem.dtype)),
        "device": "meta",
    }
    a = torch.empty(m, k, **placed) if str(problem.a) == "row" else torch.empty(k, m, **placed).t()
    b = torch.empty(k, n, **placed) if str(problem.b) == "row" else torch.empty(n, k, **placed).t()
    lengths = [pad_mm.get_padded_length(size, pad_mm.get_alignment_size(a)) for size in (m, k, n)]
    own = pad_mm.get_context(a, b, "a" in problem.free, "b" in problem.free, *lengths)
    ours = _context_of(problem).context_dict
    assert {name: ours[name] for name in own.context_dict} == own.context_dict


def test_a_heuristic_of_another_device_is_not_asked() -> None:
    """Torch has none for such a GPU."""
    assert torch_pad_heuristic("sm_75") is None


def test_torch_2_11_has_none_for_an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heuristic for H100s and H200s came with torch 2.12."""
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert torch_pad_heuristic("sm_90") is None
    assert torch_pad_heuristic("sm_80") is not None


@for_an_h100
@pytest.mark.parametrize(
    "key",
    [
        KEYS[0].replace("m=2048", "m=767"),
        KEYS[0].replace("m=2048", "m=2..2048"),
        KEYS[0].replace("pad mm", "pad addmm") + " bias=1d",
    ],
)
def test_the_heuristic_says_nothing_of_what_it_is_not_for(key: str) -> None:
    """A size below its smallest, a range, another op: torch's pass would measure."""
    decide = torch_pad_heuristic("sm_90")
    assert decide is not None
    assert decide(key) is None


@for_an_h100
def test_the_heuristic_decides_both_ways() -> None:
    """Of some unaligned GEMMs it pads one, and leaves another as it is."""
    decide = torch_pad_heuristic("sm_90")
    assert decide is not None
    keys = [
        f"pad mm m={m} n={n} k={k} bf16 a=row b=col{free}"
        for m in (1025, 4096, 16384)
        for n in (1024, 4097)
        for k in (1024, 8191)
        for free in ("", " free=a")
    ]
    assert {True, False} <= {decide(key) for key in keys}
