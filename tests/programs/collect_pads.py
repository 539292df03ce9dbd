"""Run `warmup pad collect` on the CPU, with inductor's pad_mm pass switched on there.

    python collect_pads.py JSON

JSON is an array of command lines, run one after the other; what each printed, its exit code and the
pad keys that were compiled are printed as JSON. Samples are small, and times are stated: padding is
faster in the compiled region, slower by inductor's own calls. With ``--devices`` that is so in the
workers too, whose compiles are not printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from build_unaligned import counting_compiles, pad_on_cpu, state_times

from warmup.cli import main as run_cli
from warmup.keys.pad import PADDED
from warmup.prediction.pad import sampling
from warmup.tuning.devices import host_runners
from warmup.tuning.devices.local_runner import LocalRunner

WORKER = Path(__file__).resolve().with_name("pad_worker.py")


def run(words: list[str]) -> dict[str, Any]:
    """Return what the command line *words* did."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        counting_compiles() as compiled,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            run_cli(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "ways": compiled}


def main() -> None:
    start: Any = host_runners
    start.LocalRunner = partial(LocalRunner, command=[sys.executable, str(WORKER)])
    pad_on_cpu()
    state_times(PADDED)
    module: Any = sampling
    module._LARGEST_SAMPLE, module._LARGEST_POWER = 48, 5
    module._TF32_SHARE = 0.0  # inductor asks for the precision of a GPU, which a CPU has not
    sys.stdout.write(json.dumps([run(words) for words in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
