"""Runs operators under torch's profiler and its flop counter: ``counted_operators.py TRACE``.

Prints the operations of each call as JSON, by the counter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

A, B = torch.randn(24, 40), torch.randn(40, 56)
BATCHED = torch.randn(3, 24, 40), torch.randn(3, 40, 56)
IMAGE, SOUND = torch.randn(2, 6, 17, 19), torch.randn(2, 6, 31)
HEADS = torch.randn(2, 4, 33, 16)
CALLS: dict[str, Callable[[], object]] = {
    "mm": lambda: torch.mm(A, B),
    "mm of a transposed matrix": lambda: torch.mm(A, torch.randn(56, 40).t()),
    "addmm": lambda: torch.addmm(torch.randn(56), A, B),
    "addmm with out": lambda: torch.addmm(torch.randn(56), A, B, out=torch.empty(24, 56)),
    "bmm": lambda: torch.bmm(*BATCHED),
    "baddbmm": lambda: torch.baddbmm(torch.randn(3, 24, 56), *BATCHED),
    "linear of three dims": lambda: functional.linear(torch.randn(2, 5, 40), torch.randn(8, 40)),
    "convolution": lambda: functional.conv2d(IMAGE, torch.randn(9, 6, 3, 3)),
    "strided and padded": lambda: functional.conv2d(
        IMAGE, torch.randn(9, 6, 3, 5), stride=(2, 1), padding=(1, 2)
    ),
    "dilated": lambda: functional.conv2d(IMAGE, torch.randn(9, 6, 3, 3), dilation=2),
    "in groups": lambda: functional.conv2d(IMAGE, torch.randn(9, 2, 3, 3), groups=3),
    "of one dim": lambda: functional.conv1d(SOUND, torch.randn(9, 6, 5), stride=2),
    "transposed": lambda: functional.conv_transpose2d(IMAGE, torch.randn(6, 5, 3, 3), stride=2),
    "attention": lambda: functional.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "attention of one row": lambda: functional.scaled_dot_product_attention(
        HEADS[:, :, :1], HEADS, HEADS
    ),
}


def main(path: str) -> None:
    """Write the trace to *path*, each call marked with its name, and print the counts."""
    counts = {}
    for name, call in CALLS.items():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            call()
        counts[name] = counter.get_total_flops()
    # The counter leaves out the attention of a CPU, and counts a GPU's by this formula.
    counts["attention"] = sdpa_flop_count(HEADS.shape, HEADS.shape, HEADS.shape)
    counts["attention of one row"] = sdpa_flop_count(
        HEADS[:, :, :1].shape, HEADS.shape, HEADS.shape
    )
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for name, call in CALLS.items():
            with torch.no_grad(), torch.profiler.record_function(f"warmup bucket {name}"):
                call()
    profiler.export_chrome_trace(path)
    print(json.dumps(counts))  # noqa: T201  the answer


if __name__ == "__main__":
    main(sys.argv[1])
