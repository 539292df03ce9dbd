"""Compile a small Llama of transformers in two forms, and print what a table answered, as JSON.

    python serve_llama.py               # serve both forms; `warmup build -- COMMAND` tunes them
    python serve_llama.py TABLE         # serve both strictly from the table, and count

The form ``whole`` is `torch.compile(model)`, a graph of all layers. The form ``layers`` has
`layer.compile()` called on each layer, in a model that is not compiled otherwise.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tiny_llama import TINY_LLAMA

LENGTHS = (8, 16)


def largest_error(form: str) -> float:
    """Call a model in *form*; return the largest relative L2 distance to the uncompiled model."""
    torch.compiler.reset()
    torch.manual_seed(0)
    eager = LlamaForCausalLM(LlamaConfig(**TINY_LLAMA, use_cache=False)).eval()
    model: Any = copy.deepcopy(eager)
    if form == "whole":
        model = torch.compile(model, dynamic=False)
    else:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    errors = []
    with torch.no_grad():
        for length in LENGTHS:
            tokens = torch.arange(length).reshape(1, -1)
            actual, expected = model(tokens).logits, eager(tokens).logits
            errors.append(((actual - expected).norm() / expected.norm()).item())
    return max(errors)


def serve(form: str, table: str) -> dict[str, Any]:
    import warmup
    from warmup.inductor import connect

    with (
        warmup.install(table, on_miss="strict", uncovered="forbid", freezing=True) as handle,
        connect().count_benchmarks() as sites,
    ):
        error = largest_error(form)
        report = handle.report()
    return {
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "uncovered": dict(report.uncovered),
        "benchmarks": dict(sites),
        "error": error,
    }


def main() -> None:
    forms = ("whole", "layers")
    found: dict[str, Any] = {
        form: serve(form, *sys.argv[1:]) if len(sys.argv) > 1 else largest_error(form)
        for form in forms
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
