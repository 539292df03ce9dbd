"""Tables from a program that knows nothing of warmup; print what each of three runs gave.

    python record_program.py FOLDER
    python record_program.py --program [--ranged]

The first form records the second as it asks, serves it from the table, and records it without
``--ranged`` and with the questions left to the end. The program has two processes that compile the
same linear for 8 rows. The first to start also compiles a linear for 2 to 64 rows (``--ranged``),
and a sum of long rows, which the stated rule of `build_regions` makes in four parts; two are said
to be fastest.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_regions import LENGTH, split_into, split_on_cpu, state_times


def call_linear() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 64, bias=False).eval()
    with torch.no_grad():
        torch.compile(model, dynamic=False)(torch.randn(8, 32))


def program() -> None:
    split_on_cpu()
    state_times(split_into(2))  # with it no measurement counts as disturbed
    other = multiprocessing.get_context("fork").Process(target=call_linear)
    other.start()
    other.join()
    call_linear()
    torch.compiler.reset()
    with torch.no_grad():
        if "--ranged" in sys.argv:
            rows = torch.randn(16, 32)
            torch._dynamo.mark_dynamic(rows, 0, min=2, max=64)
            torch.compile(torch.nn.Linear(32, 64).eval())(rows)
        torch.compile(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))(
            torch.randn(8, LENGTH)
        )
    sys.stderr.write("the program ends\n")
    sys.exit(7)


def said_of(built: Any) -> dict[str, Any]:
    program = built.program
    audit, rest = program.run.audit, built if program.has_rest else None
    return {
        "exit_code": program.run.exit_code,
        "processes": audit.runs,
        "hits": dict(audit.hits),
        "tuned": sorted(program.tuned),
        "left": sorted(one.key for one in program.problems),
        "rows": {} if rest is None else {k: str(r.winner) for k, r in rest.table.rows.items()},
        "not_rebuilt": {} if rest is None else dict(rest.not_rebuilt),
        "complete": built.is_complete,
    }


def main() -> None:
    if sys.argv[1] == "--program":
        program()
    from warmup.serving.run import run
    from warmup.tuning.build import BuildOptions, BuildRequest, ThisProcess, build
    from warmup.tuning.program import ProgramSource

    def record(name: str, source: ProgramSource) -> Any:
        how: dict[str, Any] = {"wait_for_quiet": 0, "fused_top_k": 0, "freezing": True}
        options = BuildOptions(device="cpu", **how)
        out = folder / name
        return build(BuildRequest(source=source, runner=ThisProcess(), out=out, options=options))

    folder = Path(sys.argv[1])
    split_on_cpu()
    outcomes = state_times(split_into(2))
    command = [sys.executable, __file__, "--program"]
    ranged = [*command, "--ranged"]
    asked = record("asked.json", ProgramSource(ranged))
    served = run(ranged, table=folder / "asked.json", freezing=True).audit
    after = record("after.json", ProgramSource(command, after=True))
    answers = {
        "asked": said_of(asked),
        "ways": [one["way"] for one in outcomes],
        "served": {"hits": dict(served.hits), "misses": [one.key for one in served.misses]},
        "after": said_of(after),
    }
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
