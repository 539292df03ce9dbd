"""Run `warmup bench pad` on the CPU, with inductor's pad_mm pass switched on there.

    python bench_pads.py COUNT...

One command for each COUNT of samples; what each printed, its exit code and the ways that were
compiled are printed as JSON. Samples are small, and times are real. Inductor asks for the float32
precision of a GPU, which a CPU lacks: no sample is tf32.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from build_unaligned import counting_compiles, pad_on_cpu

from warmup.bench import pad
from warmup.cli import main as run_cli

WORDS = ("bench", "pad", "--dtype", "f32", "--device", "cpu", "--out", "pad.jsonl")


def run(count: str) -> dict[str, Any]:
    """Return what the command for *count* samples did."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        counting_compiles() as compiled,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            run_cli([*WORDS, "--samples", count])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "ways": compiled}


def main() -> None:
    pad_on_cpu()
    module: Any = pad
    module._LARGEST_SIZE, module._LARGEST_POWER, module._LARGEST_BATCH_POWER = 48, 5, 1
    module._TF32 = 0.0
    sys.stdout.write(json.dumps([run(count) for count in sys.argv[1:]]))


if __name__ == "__main__":
    main()
