"""Build and serve a model with two ``@triton.autotune`` kernels on a GPU; a line for a step.

    python serve_user_kernels.py FOLDER

Each step is a process with empty caches. A line has what was measured, by site, counted below the
table's hooks, how often each kernel ran in all calls by the profiler, and the config that inductor
or Triton holds. The last line has the claims that follow, and whether they hold.
"""
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.autograd import DeviceType

import warmup
from warmup.core.rows import Row
from warmup.inductor import connect
from warmup.table.schema import Table
from warmup.table.store import read

# The first is never the fastest: a program of a single warp for 16 elements.
SHAPES = ((16, 1), (256, 2), (1024, 4), (2048, 8))
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in SHAPES]
FIRST = {"BLOCK": 16, "num_warps": 1}


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scale_in_graph(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["x_ptr"])
@triton.jit
def add_outside(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def grid(n: int) -> Any:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@torch.compiler.disable
def add_one_in_place(x: torch.Tensor) -> torch.Tensor:
    add_outside[grid(x.numel())](x, x.numel())
    return x


class UserKernels(nn.Module):
    """``2 * relu(linear(x)) + 1``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.linear(x))
        scaled, n = torch.empty_like(hidden), hidden.numel()
        scale_in_graph[grid(n)](hidden, scaled, n, 2.0)
        return add_one_in_place(scaled)


BUILT, OTHER, CALLS = 512, 384, 3
KERNELS = ("scale_in_graph", "add_outside")
SITE = "triton.autotune"
STRICT = {"on_miss": "strict", "uncovered": "forbid"}
STEPS: dict[str, Any] = {
    "no table": (BUILT, None),
    "strict": (BUILT, STRICT),
    "planted": (BUILT, STRICT),
    "other size": (OTHER, {"on_miss": "fallback"}),
}


def rows_of(table: Table) -> dict[str, Row]:
    return {key: row for key, row in table.rows.items() if key.startswith("autotune ")}


def with_first(row: Row) -> Row:
    kwargs = tuple((name, FIRST.get(name, value)) for name, value in row.winner.kwargs)
    return replace(row, winner=replace(row.winner, kwargs=kwargs))


def serve(table: Table, step: str) -> dict[str, Any]:
    """Compile and call the model as *step* says; return what was measured, run and reported."""
    inductor = connect()  # checks the names of inductor, before one of them is replaced here
    held, run = dict[str, Any](), CachingAutotuner.run

    def hold(name: str, config: Any) -> None:
        held[name] = {**config.kwargs, "num_warps": config.num_warps}

    @wraps(run)  # the names of inductor are checked again by install
    def noted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(kernel, *args, **kwargs)
        hold(kernel.fn.__name__, kernel.launchers[0].config)
        return result

    CachingAutotuner.run = noted  # type: ignore[method-assign]
    (rows, words), wrong = STEPS[step], list[float]()
    if step == "planted":
        first = {key: with_first(row) for key, row in rows_of(table).items()}
        table = replace(table, rows={**table.rows, **first})
    model = UserKernels().eval().cuda().bfloat16()
    x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
    with inductor.count_benchmarks() as measured, torch.no_grad():
        handle = None if words is None else warmup.install(table, **words)
        expected, served = 2 * torch.relu(model.linear(x)) + 1, torch.compile(model, dynamic=False)
        with torch.profiler.profile() as profiled:
            for _ in range(CALLS):
                wrong.append(((served(x) - expected).norm() / expected.norm()).item())
            torch.cuda.synchronize()
    hold("add_outside", add_outside.best_config)
    events = [each for each in profiled.events() or () if each.device_type == DeviceType.CUDA]
    line = {
        "step": step,
        "measured": measured,
        "ran": Counter(each.name for each in events if each.name in KERNELS),
        "configs": {name: held[name] for name in KERNELS},
        "wrong": max(wrong),
    }
    if handle is None:
        return line
    report = handle.report()
    return line | {name: dict(getattr(report, name)) for name in ("hits", "misses", "uncovered")}


def run_step(step: str, *command: object) -> str:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    variables = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    with TemporaryDirectory() as empty:
        caches = {name: str(Path(empty, name)) for name in variables}
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env={**os.environ, **caches, "PYTHONPATH": path, "WARMUP_BUNDLE": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in {0, 4}:  # 4: a noisy machine
        sys.exit(f"{step}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
    return done.stdout


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201  the result


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "t.json"
    given = ("--model", f"{__file__}:UserKernels", "--input", "x=[seqlen,256]:bf16")
    words = ("--dtype", "bf16", "--seqlens", BUILT, "--out", table)
    run_step("build", "-m", "warmup", "build", *given, *words)
    rows = rows_of(read(table))
    say({"step": "build", "rows": {key: row.evidence.ranking for key, row in rows.items()}})
    winners = {
        key.split(" ")[1]: {name: dict(row.winner.kwargs)[name] for name in FIRST}
        for key, row in rows.items()
    }
    lines: list[dict[str, Any]] = []
    for step in STEPS:
        lines.append(json.loads(run_step(step, __file__, folder, step).splitlines()[-1]))
        say(lines[-1])
    plain, strict, planted, other = lines
    calls, both = dict.fromkeys(KERNELS, CALLS), {SITE: 2 * len(CONFIGS)}
    claims = {
        "a row for each kernel": {*winners} == {*KERNELS},
        "without a table both are measured": plain["measured"].get(SITE) == both[SITE],
        "each row is a hit": {*rows} <= {*strict["hits"]},
        "nothing is measured": strict["measured"] == planted["measured"] == {},
        "a kernel runs once a call": strict["ran"] == planted["ran"] == calls,
        "the rows' configs run": strict["configs"] == winners,
        "a planted config runs": planted["configs"] == dict.fromkeys(KERNELS, FIRST),
        "results are right": max(line["wrong"] for line in lines) < 0.02,
        "another size is measured and reported": other["measured"] == other["uncovered"] == both,
    }
    say({"step": "claims", "holds": all(claims.values()), **claims})


if __name__ == "__main__":
    if len(sys.argv) > 2:
        say(serve(read(Path(sys.argv[1]) / "t.json"), sys.argv[2]))
    else:
        main(Path(sys.argv[1]).resolve())
