"""Serve a model of reductions from a table on a GPU; print the counts and errors as JSON.

    python serve_reductions.py FILE.py:Model SEQLEN TABLE strict|fallback

Errors are relative to the model in float32: the served outputs' largest, and eager's.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

import torch
from torch._inductor.utils import run_and_get_code

import warmup
from warmup.inductor import connect
from warmup.models.loading import load_model


def error(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(((a.float() - b).norm() / b.norm()).item() for a, b in pairs)


def main(path: str, seqlen: str, table: str, on_miss: str) -> None:
    """Print the benchmarks by site, the hits by kind of key, the kernels and the errors."""
    model = load_model(path)
    module = model.module.cuda()
    given = [each.cuda() for each in model.example_inputs(seqlen=int(seqlen))]
    with connect().count_benchmarks() as sites, torch.no_grad():
        handle = warmup.install(table, on_miss=on_miss)
        found, codes = run_and_get_code(torch.compile(module, dynamic=False), *given)
        handle.close()
        expected = module(*given)
        wanted = module.float()(*(each.float() for each in given))
    result = {
        "sites": dict(sites),
        "hits": Counter(key.partition(" ")[0] for key in handle.report().hits),
        "kernels": re.findall(r"(triton_[a-z]+)_\w+\.run\(", codes[0]),
        "error": error(found, wanted),
        "eager": error(expected, wanted),
    }
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
