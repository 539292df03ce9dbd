"""Build and serve a model with two ``@triton.autotune`` kernels on a GPU; print what came.

    python serve_user_kernels.py FOLDER

Each step is a process with caches of its own in FOLDER. A line has what was measured (calls of the
benchmarks of inductor and of Triton, counted below warmup's hooks), how often the kernels ran in
all calls by the profiler, the config of each kernel as inductor and Triton hold it, and what
warmup's report says. The last line has the claims, and whether each holds.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from triton.runtime.autotuner import Autotuner

import warmup
from warmup.core.errors import warmup_error_in
from warmup.core.rows import Row
from warmup.table.schema import Table
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tests/programs/models/user_kernels.py"
BUILT, OTHER, CALLS = 512, 384, 3
FIRST = {"BLOCK": 16, "num_warps": 1}
KERNELS = {"scale_in_graph": "graph", "add_outside": "outside"}
sys.path.insert(0, str(ROOT / MODEL.rpartition("/")[0]))
import user_kernels  # noqa: E402  a model, not a package

Line = dict[str, Any]


def count(owner: Any, name: str, counts: Counter[str]) -> None:
    """Count calls of a method, below whatever warmup wraps around it."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[f"{owner.__name__}.{name}"] += 1
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def user_rows(table: Table) -> dict[str, Row]:
    return {key: row for key, row in table.rows.items() if key.startswith("autotune ")}


def config_of(config: Any) -> Line:
    return {**config.kwargs, "num_warps": config.num_warps}


def planted(table: Table) -> Table:
    """Return *table* with the slowest config of the list, the first, in the rows of the kernels."""
    first = FIRST
    rows = dict(table.rows)
    for key, row in user_rows(table).items():
        kwargs = tuple((name, first.get(name, value)) for name, value in row.winner.kwargs)
        rows[key] = replace(row, winner=replace(row.winner, kwargs=kwargs))
    return replace(table, rows=rows)


def serve(table: Path | None, rows: int, **words: Any) -> Line:
    """Compile and call the model for *rows* rows in this process."""
    counts: Counter[str] = Counter()
    count(Autotuner, "_bench", counts)
    count(CachingAutotuner, "bench", counts)
    held: dict[str, Line] = {}
    run = CachingAutotuner.run

    def noting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(kernel, *args, **kwargs)
        if kernel.fn.__name__ in KERNELS:
            held["graph"] = config_of(kernel.launchers[0].config)
        return result

    CachingAutotuner.run = noting  # type: ignore[method-assign]
    torch.manual_seed(0)
    model = user_kernels.UserKernels().eval().cuda().bfloat16()
    x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
    handle, error, difference = None, None, None
    if table is not None:
        known = read(table)
        is_planted = words.pop("planted", False)
        handle = warmup.install(planted(known) if is_planted else known, **words)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.no_grad(), profile(activities=activities) as seen:
        expected = 2 * torch.relu(model.linear(x)) + 1
        served = torch.compile(model, dynamic=False)
        try:
            for _ in range(CALLS):
                found = served(x)
            difference = ((found - expected).norm() / expected.norm()).item()
        except Exception as raised:
            own = warmup_error_in(raised)
            if own is None:
                raise
            error = f"{type(own).__name__}: {own}"
        torch.cuda.synchronize()
    if best := getattr(user_kernels.add_outside, "best_config", None):
        held["outside"] = config_of(best)
    launched = Counter(
        KERNELS[event.name]
        for event in seen.events() or ()
        if event.name in KERNELS and event.device_type is DeviceType.CUDA
    )
    line = {"measured": dict(counts), "launched": launched, "configs": held}
    line |= {"difference": difference, "error": error}
    if handle is not None:
        report = handle.report()
        handle.close()
        for name in ("hits", "misses", "uncovered"):
            line[name] = dict(getattr(report, name))
        line["unused"] = list(report.unused)
    return line


def start(folder: Path, step: str, *words: str) -> subprocess.CompletedProcess[str]:
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / step / "inductor"),
        "TRITON_CACHE_DIR": str(folder / step / "triton"),
    }
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **caches, "PYTHONPATH": path, "WARMUP_BUNDLE": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def build(folder: Path, table: Path) -> Line:
    model = ("--model", f"{MODEL}:UserKernels", "--input", "x=[seqlen,256]:bf16")
    words = ("-m", "warmup", "build", *model, "--seqlens", str(BUILT), "--out", str(table))
    done = start(folder, "build", *words, "--json")
    if done.returncode not in {0, 4}:  # 4: a noisy machine
        sys.exit(
            f"the build ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        )
    rows = {
        key: {"winner": dict(row.winner.kwargs), "ranking": row.evidence.ranking}
        for key, row in user_rows(read(table)).items()
    }
    return {"step": "build", "torch": torch.__version__, "rows": rows, "code": done.returncode}


STEPS: dict[str, Line] = {
    "without a table": {"table": None, "rows": BUILT},
    "strict": {"rows": BUILT, "on_miss": "strict", "uncovered": "forbid"},
    "strict again": {"rows": BUILT, "on_miss": "strict", "uncovered": "forbid"},
    "planted": {"rows": BUILT, "on_miss": "strict", "uncovered": "forbid", "planted": True},
    "other size": {"rows": OTHER, "on_miss": "fallback"},
    "other size again": {"rows": OTHER, "on_miss": "fallback"},
    "other size, strict": {"rows": OTHER, "on_miss": "strict"},
    "other size, forbidden": {"rows": OTHER, "on_miss": "fallback", "uncovered": "forbid"},
}


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    table = folder / "t.json"
    if len(sys.argv) > 2:  # a step, in a process of its own
        words = {"table": table, **STEPS[sys.argv[2]]}
        say(**serve(words.pop("table"), words.pop("rows"), **words))
        return
    folder.mkdir(parents=True, exist_ok=True)
    built = build(folder, table)
    say(**built)
    lines: dict[str, Line] = {}
    for step in STEPS:
        place = step.removesuffix(" again")  # with the caches of the step before
        done = start(folder, place, __file__, str(folder), step)
        if done.returncode:
            sys.exit(f"{step}: {done.stderr[-6000:]}")
        lines[step] = json.loads(done.stdout.splitlines()[-1])
        say(step=step, **lines[step])
    claims = judge(built["rows"], lines)
    say(step="claims", claims=claims, all=all(claims.values()))


def judge(rows: Line, lines: dict[str, Line]) -> dict[str, bool]:
    keys = {
        where: next((key for key in rows if name in key), "") for name, where in KERNELS.items()
    }
    winners = {
        where: {name: rows[key]["winner"][name] for name in ("BLOCK", "num_warps")}
        for where, key in keys.items()
        if key
    }
    plain = dict.fromkeys(KERNELS.values(), CALLS)
    strict, again, first = lines["strict"], lines["strict again"], lines["planted"]
    other, refused = lines["other size"], lines["other size, strict"]
    own = [key for key in other.get("misses", {}) if key.startswith("autotune ")]
    return {
        "two rows": set(winners) == set(KERNELS.values()),
        "without a table both measure": len(lines["without a table"]["measured"]) == len(plain),
        "nothing is measured": strict["measured"] == again["measured"] == first["measured"] == {},
        "each kernel runs once a call": strict["launched"] == first["launched"] == plain,
        "the rows' configs run": strict["configs"] == again["configs"] == winners,
        "each row is a hit": {*keys.values()} <= {*strict.get("hits", ())},
        "a planted config runs": first["configs"] == dict.fromkeys(plain, FIRST),
        "right results": all(
            line["difference"] is None or line["difference"] < 0.02 for line in lines.values()
        ),
        "another size is two misses": len(own) == len(plain) and other["error"] is None,
        "and measured as without a table": len(other["measured"]) == len(plain)
        and set(other["uncovered"]) == {"triton.autotune"},
        "strict refuses it unmeasured": str(refused["error"]).startswith("MissError")
        and refused["measured"] == {},
        "forbid refuses the measurement": str(lines["other size, forbidden"]["error"]).startswith(
            "UncoveredError"
        ),
    }


if __name__ == "__main__":
    main()
