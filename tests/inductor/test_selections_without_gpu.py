"""Convolutions and grouped products for a stated H100: by rows, asked for in a build, missed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.kernel import conv

PROGRAM = "cuda_selections.py"

pytestmark = pytest.mark.long

Ask = Callable[..., dict[str, Any]]
GROUPS = {
    "experts": "groups=8 over=m m=1024 n=512 k=4096 bf16 a=row b=col",
    "weight gradients": "groups=8 over=k m=512 n=256 k=1024 bf16 a=row b=row",
    "input gradients": "groups=8 over=n m=64 n=1024 k=512 bf16 a=row b=col",
    "batches": "groups=8 over=nothing m=64 n=256 k=512 bf16 a=row b=col",
}
TILES = {"narrow": {"BLOCK_M": 128, "BLOCK_N": 64}, "experts": {"BLOCK_M": 64, "BLOCK_N": 128}}
FORMS = {
    "siglip": "x=1x3x384x384 w=1152x3x14x14 stride=14x14 padding=0x0 groups=1 ",
    "siglip of 8": "x=8x3x384x384 w=1152x3x14x14 stride=14x14 padding=0x0 groups=1 ",
    "valid": "x=8x64x28x28 w=64x64x3x3 stride=1x1 padding=0x0 groups=1 ",
    "same": "x=8x64x28x28 w=64x64x3x3 stride=1x1 padding=1x1 groups=1 ",
    "same, even": "x=8x64x29x29 w=64x64x4x4 stride=1x1 padding=1x1 groups=1 ",
    "of one value": "x=8x64x28x28 w=64x64x3x3 stride=2x2 padding=1x1 groups=1 ",
    "of two values": "x=8x64x28x28 w=64x64x3x3 stride=2x1 padding=1x0 groups=1 ",
    "in groups": "x=8x64x28x28 w=64x16x3x3 stride=1x1 padding=1x1 groups=4 ",
    "of each channel": "x=8x64x28x28 w=64x1x3x3 stride=1x1 padding=1x1 groups=64 ",
    "of one point": "x=8x64x28x28 w=64x64x1x1 stride=2x2 padding=0x0 groups=1 ",
    "without a batch": "x=1x64x28x28 w=64x64x3x3 stride=1x1 padding=1x1 groups=1 ",
    "1d, of each channel": "x=8x64x400 w=64x1x3 stride=1 padding=1 groups=64 ",
    "3d": "x=2x16x8x28x28 w=32x16x2x4x4 stride=2x4x4 padding=0x0x0 groups=1 ",
    "3d of one value": "x=2x16x8x28x28 w=32x16x3x3x3 stride=1x1x1 padding=1x1x1 groups=1 ",
    "3d of one point": "x=2x16x8x14x14 w=32x16x1x1x1 stride=1x1x1 padding=0x0x0 groups=1 ",
}


def calls_library(found: dict[str, Any]) -> bool:
    library = ("extern_kernels.convolution(", "extern_kernels._grouped_mm(")
    return any(line.startswith(library) for line in found["launches"])


def test_a_row_names_the_template_and_its_tile_or_the_library(ask: Ask) -> None:
    """The template's kernel is compiled, with what follows fused into it; the row is a hit."""
    for case, tile in TILES.items():
        found = ask(case=case, tile=tile)
        (event,) = found["events"]
        assert (found["error"], event["name"]) == (None, "lookup.hit"), case
        assert all(f"{name}={size}," in event["winner"] for name, size in tile.items()), case
        assert not calls_library(found), case
        assert sum(line.startswith("triton_tem") for line in found["launches"]) == 1, case
    found = ask(case="patches", library=True)
    assert calls_library(found)
    assert [event["name"] for event in found["events"]] == ["lookup.hit"]


def test_without_a_row_the_library_is_compiled_and_missed(ask: Ask) -> None:
    """The miss has the key, with the dim that groups divide; strict serving refuses it."""
    patches = "x=8x3x518x518 w=768x3x14x14 stride=14x14 "
    cases = {"patches": ("aten::convolution", f"convolution {patches}")}
    cases |= {
        case: ("aten::_grouped_mm", f"grouped_mm {key} out=bf16") for case, key in GROUPS.items()
    }
    for case, (library, key) in cases.items():
        found = ask(case=case)
        (event,) = found["events"]
        assert (event["name"], event["choice"]) == ("lookup.missed", library), case
        assert event["key"].startswith(key), case
        assert calls_library(found), case
        assert ask(case=case, on_miss="strict")["error"].startswith("MissError"), case


def test_a_build_times_what_inductor_lists(ask: Ask) -> None:
    """Groups of other dims have inductor's own offsets, or none, and the library wins there."""
    for case in {**TILES, **GROUPS}:
        tile = TILES.get(case, {})
        found = ask(case=case, on_miss="tune", tile=tile)
        (event,) = found["events"]
        assert event["name"] == "problem.tuned", case
        assert all(f"{name}={size}," in event["winner"] for name, size in tile.items()), case
        assert len(found["timed"]) == len(set(found["candidates"])), case
        assert len(found["timed"]) > (5 if case == "narrow" else 20), case
        assert calls_library(found) == (not tile), case


def test_convolutions_of_every_form_are_built_and_missed(ask: Ask) -> None:
    """Every form that torch allows has its key, its work, and candidates that a row can name."""
    for case, words in FORMS.items():
        if case == "1d, of each channel" and not hasattr(conv, "depthwise_conv1d_template"):
            continue  # on torch 2.11, which has the library's kernel alone
        (missed,) = ask(case=case)["events"]
        assert missed["key"].startswith(f"convolution {words}"), case
        built = ask(case=case, on_miss="tune")
        (tuned,) = built["events"]
        assert built["error"] is None, case
        assert (tuned["name"], tuned["key"]) == ("problem.tuned", missed["key"]), case
        assert len(built["candidates"]) >= len(built["timed"]) > 5, case


def test_where_there_is_no_choice_nothing_is_asked(ask: Ask) -> None:
    """For a range of batches or rows, and in tables of earlier builds, the library computes."""
    cases: list[dict[str, Any]] = [
        *({"case": case} for case in ("same, dilated", "dilated", "transposed", "1d")),
        *({"case": case} for case in ("1d, transposed", "3d, transposed")),
        *({"case": "patches", **words} for words in ({"ranged": True}, {"backends": "ATEN"})),
        *({"case": "experts", **words} for words in ({"ranged": True}, {"earlier": True})),
    ]
    for case in cases:
        found = ask(**case, on_miss="strict")
        assert (found["error"], found["events"]) == (None, []), case
        assert calls_library(found), case


def test_a_template_runs_on_the_stream_that_is_current_when_it_is_called() -> None:
    """Not on that of the time when its function was made: a CUDA graph captures another stream."""
    from warmup.inductor.selections import run_of

    streams: list[int] = []

    def run(*, stream: int) -> None:
        streams.append(stream)

    request = SimpleNamespace(make_run_fn=lambda *_inputs, out: partial(run, stream=99))
    tensor = torch.zeros(2)
    run_of(SimpleNamespace(bmreq=request), (tensor, tensor), tensor)(0)
    assert streams == [0]  # a CPU's only stream
