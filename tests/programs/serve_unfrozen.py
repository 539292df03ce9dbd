"""Serves a linear model and a batched product from a table whose linears were built frozen.

    python serve_unfrozen.py TABLE BMM_TABLE

The rows of both tables are served. Prints as JSON, for each way of an install, the hits, the
reasons of misses, the error against eager before and after all weights were doubled, and what was
refused.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from mlp import MLP

import warmup
from warmup.core.errors import warmup_error_in


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLP()

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.mlp(x), torch.relu(torch.bmm(a, b))


@torch.no_grad()
def serve(table: Any, *, of_program: bool = False, **settings: Any) -> dict[str, Any]:
    torch.compiler.reset()
    torch.manual_seed(0)
    os.environ["WARMUP_QUIET"] = "1"
    options = settings.pop("options", None)
    inputs = torch.randn(16, 256), torch.randn(4, 64, 32), torch.randn(4, 32, 48)
    model, errors, refused = Both().eval(), [], None
    with config.patch(freezing=of_program), warmup.install(table, **settings) as handle:
        served = torch.compile(model, dynamic=False, options=options)
        try:
            for _ in range(2):
                found, expected = served(*inputs), model(*inputs)
                errors.append(max(map(float, map(torch.dist, found, expected))))
                for weight in model.parameters():
                    weight.mul_(2)
        except Exception as error:  # noqa: BLE001  printed
            refused = str(warmup_error_in(error) or error)
        report = handle.report()
    return {
        "hits": sorted(report.hits),
        "reasons": dict(report.miss_reasons),
        "advised": report.advised,
        "errors": errors,
        "refused": refused,
    }


def main() -> None:
    frozen, products = map(warmup.load, sys.argv[1:])
    table = replace(frozen, rows={**frozen.rows, **products.rows})
    found = {
        "nobody": serve(table),
        "strict": serve(table, on_miss="strict"),
        "option of the compile": serve(table, options={"freezing": True}),
        "program": serve(table, of_program=True),
        "user": serve(table, freezing=True, on_miss="strict"),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
