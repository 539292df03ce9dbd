"""A server as people write them: it knows nothing of warmup.

    python run_mlp.py [--spawn] [--exit CODE] SEQLEN...

Compiles the example MLP in default mode and prints one line for each size; with ``--spawn`` in a
process that multiprocessing spawns, and without torch.compile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from mlp import MLP


def serve(seqlens: list[int], *, direct: bool = False) -> None:
    compile_it = torch._dynamo.optimize("inductor", dynamic=False) if direct else torch.compile
    model = MLP().eval()
    served = compile_it(model)
    with torch.no_grad():
        for seqlen in seqlens:
            hidden_states = torch.randn(seqlen, 256)
            torch.testing.assert_close(served(hidden_states), model(hidden_states))
            sys.stdout.write(f"served {seqlen}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("seqlens", type=int, nargs="+")
    arguments = parser.parse_args()
    if arguments.spawn:
        start = multiprocessing.get_context("spawn").Process
        process = start(target=serve, args=(arguments.seqlens,), kwargs={"direct": True})
        process.start()
        process.join()
        sys.exit(process.exitcode)
    serve(arguments.seqlens)
    sys.exit(arguments.exit)


if __name__ == "__main__":
    main()
