"""Serves `NormedMLP` at several numbers of rows, and counts the values whose bits differ.

``compare_rows.py TABLE SIZES``: the first rows alone, compared with the same rows among the most of
SIZES. The JSON has a count for each size. The TABLE ``none`` is max-autotune without a table.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import torch
from torch._inductor.utils import fresh_cache

import warmup

sys.path.insert(0, str(Path(__file__).parent / "models"))
from normed_mlp import NormedMLP, example_inputs


def main() -> None:
    table, words = sys.argv[1:]
    sizes = sorted(map(int, words.split(",")), reverse=True)
    torch.manual_seed(0)
    model, rows = NormedMLP().eval(), example_inputs(sizes[0])
    outputs = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(fresh_cache())
        stack.enter_context(torch.no_grad())
        options = {"max_autotune": True, "freezing": True}
        if table != "none":
            stack.enter_context(warmup.install(table, on_miss="strict", freezing=True))
            options = {}
        for size in sizes:
            torch.compiler.reset()
            outputs[size] = torch.compile(model, dynamic=False, options=options)(rows[:size])
    bits = {size: out.view(torch.int32) for size, out in outputs.items()}
    whole = bits[sizes[0]]
    differing = {size: int((each != whole[:size]).sum()) for size, each in bits.items()}
    sys.stdout.write(json.dumps(differing))


if __name__ == "__main__":
    main()
