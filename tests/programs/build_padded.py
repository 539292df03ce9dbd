"""Build a table of a model whose weights are found to be faster padded, then serve it both ways.

    python build_padded.py model.py:Head table.json

Prints as JSON what the build found and said, and what it came to to serve 8 rows strictly, of the
model as it is and prepared.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

import warmup
from warmup.cli.build_render import BuildProgress, document, spell
from warmup.models.loading import load_model
from warmup.tuning import weights as measure


def serve(table: str, model: torch.nn.Module, *, prepared: bool) -> dict[str, Any]:
    """Serve one bucket strictly; what was asked, and how far the output is from eager."""
    torch.compiler.reset()
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger("warmup").addHandler(handler)
    inputs = torch.randn(8, 64)
    with torch.no_grad():
        expected = model(inputs)
        how: dict[str, Any] = {"model": model} if prepared else {}
        with warmup.install(table, on_miss="strict", freezing=True, **how) as handle:
            found = torch.compile(model)(inputs)
            report = handle.report()
    logging.getLogger("warmup").removeHandler(handler)
    return {
        "hits": sorted(report.hits),
        "misses": dict(report.misses),
        "unused": list(report.unused),
        "padded": None
        if handle.prepared is None
        else list(map(str, handle.prepared.padded.values())),
        "error": ((found - expected).norm() / expected.norm()).item(),
        "sizes": [list(one.shape) for one in model.state_dict().values()],
        "log": [line for line in said.getvalue().splitlines() if "install(" in line],
    }


def main() -> None:
    spelled, table = sys.argv[1:]
    measure._pays = lambda *_: True  # timings decide no test
    progress = io.StringIO()
    with contextlib.redirect_stderr(progress), BuildProgress() as observer:
        report = warmup.build(
            spelled,
            "8",
            table,
            options=warmup.BuildOptions(
                device="cpu",
                pad_weights=True,
                fused_top_k=0,  # how a row is measured is not the matter
            ),
            observer=observer,
        )
    logging.getLogger("warmup").setLevel(logging.INFO)
    said = {
        "rows": {key: dict(row.winner.kwargs) for key, row in report.table.rows.items()},
        "document": document(report),
        "progress": progress.getvalue().splitlines(),
        "text": list(spell(report)),
        "path": str(Path(table)),
        "built": [str(one) for one in report.prepared.padded] if report.prepared else None,
        "as_is": serve(table, load_model(spelled).module, prepared=False),
        "prepared": serve(table, load_model(spelled).module, prepared=True),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
