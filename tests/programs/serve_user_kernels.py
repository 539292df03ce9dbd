"""Build and serve a model with two ``@triton.autotune`` kernels on a GPU; a line for a step.

    python serve_user_kernels.py FOLDER

Each step is a process with empty caches. A line has the calls of the tuners' benchmarks, counted
below warmup's hooks, how often each kernel ran in all calls by the profiler, and the config that
inductor or Triton holds. The last line has the claims that follow, and whether they hold.
"""
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.autograd import DeviceType
from triton.runtime.autotuner import Autotuner

import warmup
from warmup.core.errors import warmup_error_in
from warmup.core.rows import Row
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
    """Add 1 to *x*: more, if a tuner did not restore it."""
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
STRICT = {"on_miss": "strict", "uncovered": "forbid"}
STEPS: dict[str, Any] = {
    "no table": (BUILT, None),
    "strict": (BUILT, STRICT),
    "planted": (BUILT, STRICT),
    "other size": (OTHER, {"on_miss": "fallback"}),
    "other size, strict": (OTHER, {"on_miss": "strict"}),
    "other size, forbidden": (OTHER, {"uncovered": "forbid"}),
}


def planted(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows of the kernels with the first config of their list."""
    own = {key: row for key, row in rows.items() if key.startswith("autotune ")}
    kwargs = {
        key: tuple((name, FIRST.get(name, value)) for name, value in row.winner.kwargs)
        for key, row in own.items()
    }
    return {
        key: replace(row, winner=replace(row.winner, kwargs=kwargs[key]))
        for key, row in own.items()
    }


def serve(path: Path, step: str) -> dict[str, Any]:
    """Compile and call the model as *step* says; return what was measured, run and reported."""
    measured, held = Counter[str](), dict[str, Any]()

    def note(owner: Any, name: str, noting: Any) -> None:
        original = getattr(owner, name)

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            noting(self)
            return result

        setattr(owner, name, noted)

    def hold(name: str, config: Any) -> None:
        if name in KERNELS:
            held[name] = {**config.kwargs, "num_warps": config.num_warps}

    note(Autotuner, "_bench", lambda tuner: measured.update([tuner.base_fn.__name__]))
    note(CachingAutotuner, "bench", lambda kernel: measured.update([kernel.fn.__name__]))
    note(Autotuner, "run", lambda tuner: hold(tuner.base_fn.__name__, tuner.best_config))
    note(CachingAutotuner, "run", lambda one: hold(one.fn.__name__, one.launchers[0].config))
    (rows, words), table, error, wrong = STEPS[step], read(path), None, 0.0
    if step == "planted":
        table = replace(table, rows={**table.rows, **planted(table.rows)})
    model = UserKernels().eval().cuda().bfloat16()
    x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
    handle = None if words is None else warmup.install(table, **words)
    with torch.no_grad(), torch.profiler.profile() as profiled:
        expected = 2 * torch.relu(model.linear(x)) + 1
        served = torch.compile(model, dynamic=False)
        try:
            for _ in range(CALLS):
                wrong = max(wrong, ((served(x) - expected).norm() / expected.norm()).item())
        except Exception as raised:
            error = warmup_error_in(raised)
            if error is None:
                raise
        torch.cuda.synchronize()
    events = [each for each in profiled.events() or () if each.device_type is DeviceType.CUDA]
    ran = Counter(each.name for each in events if each.name in KERNELS)
    line = {"step": step, "measured": measured, "ran": ran, "configs": held, "wrong": wrong}
    line["error"] = error and f"{type(error).__name__}: {error}"[:200]
    if handle is not None:
        report = handle.report()
        line |= {name: dict(getattr(report, name)) for name in ("hits", "misses", "uncovered")}
    return line


def run(folder: Path, step: str, *command: object) -> str:
    """Return what Python printed, with empty caches for *step* in *folder*."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    variables = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    caches = {name: str(folder / step / name) for name in variables}
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


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "t.json"
    given = ("--model", f"{__file__}:UserKernels", "--input", "x=[seqlen,256]:bf16")
    words = ("--dtype", "bf16", "--seqlens", BUILT, "--out", table)
    run(folder, "build", "-m", "warmup", "build", *given, *words)
    rows = {key: row for key, row in read(table).rows.items() if key.startswith("autotune ")}
    names = {key: key.split(" ")[1] for key in rows}
    winners = {
        names[key]: {name: dict(row.winner.kwargs)[name] for name in FIRST}
        for key, row in rows.items()
    }
    said = {key: row.evidence.ranking for key, row in rows.items()}
    sys.stdout.write(json.dumps({"step": "build", "torch": torch.__version__, "rows": said}) + "\n")
    lines: dict[str, Any] = {}
    for step in STEPS:
        lines[step] = json.loads(run(folder, step, __file__, folder, step).splitlines()[-1])
        sys.stdout.write(json.dumps(lines[step]) + "\n")
        sys.stdout.flush()
    plain, strict, planted, other, *refused = lines.values()
    all_calls = dict.fromkeys(KERNELS, CALLS)
    claims = {
        "a row for each kernel": {*winners} == {*KERNELS},
        "without a table both are measured": {*KERNELS} <= {*plain["measured"]},
        "each row is a hit, nothing is measured": {*rows} <= {*strict["hits"]}
        and strict["measured"] == planted["measured"] == {},
        "a kernel runs once a call": strict["ran"] == planted["ran"] == all_calls,
        "the rows' configs run": strict["configs"] == winners,
        "a planted config runs": planted["configs"] == dict.fromkeys(KERNELS, FIRST),
        "results are right": max(line["wrong"] for line in lines.values()) < 0.02,
        "another size is missed, and measured": {*KERNELS} <= {*other["measured"]}
        and sum(key.startswith("autotune ") for key in other["misses"]) == len(KERNELS)
        and {*other["uncovered"]} == {"triton.autotune"},
        "or refused": [each["error"].split(":")[0] for each in refused]
        == ["MissError", "UncoveredError"]
        and all(each["measured"] == {} for each in refused),
    }
    sys.stdout.write(json.dumps({"step": "claims", "holds": all(claims.values())} | claims) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.stdout.write(json.dumps(serve(Path(sys.argv[1]) / "t.json", sys.argv[2])) + "\n")
    else:
        main(Path(sys.argv[1]).resolve())
