"""Measures compiles of the pieces that vLLM cuts a model into: tuned online, and from a table.

    python docs/benchmarks/vllm_pieces.py measure --pieces FOLDER --sizes 8,64 --out RESULTS.json

`vllm_cut.py` writes FOLDER, with vLLM; this program needs none. It compiles each piece as vLLM
0.32 does: by inductor's `standalone_compile`, once for the range of token counts, and once for
each of the static sizes with `max_autotune` and coordinate descent. Each start is a process of its
own with empty caches:

- online: without a table, as vLLM tunes its `compile_sizes`;
- build: the same program under `warmup build --out TABLE -- ...`;
- table: the same program under `warmup run --table TABLE -- ...`.

    python docs/benchmarks/vllm_pieces.py start --pieces FOLDER --sizes 8,64

is the program. Its last line of JSON has the seconds by size, the benchmarks, and how far outputs
are from those of the pieces that were not compiled.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import caches_in, numbers, python_path, write

# What vLLM sets for inductor on a GPU (vllm 0.32.0: config/compilation.py,
# compilation/compiler_interface.py): for every compile, and for single sizes beside that.
EVERY = {
    "enable_auto_functionalized_v2": False,
    "size_asserts": False,
    "nan_asserts": False,
    "combo_kernels": True,
    "benchmark_combo_kernel": True,
}
SINGLE = {"max_autotune": True, "coordinate_descent_tuning": True}
RANGE = "range"
_LINE = "START "
_LIMIT_S = 1800.0
_TABLE_S = 45.0  # for the start from the table, however long the build is
_SHOWN = 3000


@dataclass(frozen=True)
class Traced:
    """A graph, its example inputs, and the inputs and outputs of its call without a compiler."""

    graph: Any
    examples: list[Any]
    inputs: list[Any]
    outputs: list[Any]


class Pieces:
    """The pieces of *folder*, with random inputs on their device."""

    def __init__(self, folder: Path) -> None:
        import torch

        self.torch = torch
        document = json.loads((folder / "pieces.json").read_text())
        self.order, self.inputs = document["order"], document["inputs"]
        self.device = torch.device(document["device"])
        sys.path.insert(0, str(folder))
        self.source = importlib.import_module("pieces")  # dynamo imports it by this name too
        torch.manual_seed(0)
        # Pieces of one class share their weights: what is compiled does not depend on them.
        self.weights = {name: self._make(name) for name in self.inputs}

    def _make(self, name: str) -> list[Any]:
        return [
            None if "shape" not in each or "tokens" in each["shape"] else self._tensor(each, 0)
            for each in self.inputs[name]
        ]

    def _tensor(self, each: dict[str, Any], tokens: int) -> Any:
        torch = self.torch
        shape = [tokens if size == "tokens" else size for size in each["shape"]]
        dtype = getattr(torch, each["dtype"])
        if not dtype.is_floating_point:
            return torch.randint(0, 1000, shape, dtype=dtype, device=self.device)
        # Weights are scaled as those of a trained layer, so that outputs stay near 1.
        scale = shape[-1] ** -0.5 if tokens == 0 else 1.0
        return torch.randn(shape, dtype=dtype, device=self.device) * scale

    def call(self, name: str, tokens: int) -> list[Any]:
        """Return the inputs of a call of *name* without the number of tokens."""
        return [
            self._tensor(each, tokens) if weight is None else weight
            for each, weight in zip(self.inputs[name], self.weights[name], strict=True)
            if "shape" in each
        ]

    def module(self, name: str) -> Callable[..., Any]:
        """Return the function of *name*, which reads the number of tokens from its input."""
        piece = getattr(self.source, name)()
        at = [index for index, each in enumerate(self.inputs[name]) if "shape" not in each]

        def forward(*given: Any) -> Any:
            inputs = list(given)
            for index in at:
                inputs.insert(index, given[0].shape[0])
            return piece(*inputs)

        return forward

    def trace(self, name: str, tokens: int, *, is_range: bool) -> Traced:
        """Return the graph of *name* as dynamo traces it, and what its call of *tokens* gives."""
        torch = self.torch
        torch._dynamo.reset()
        inputs = self.call(name, tokens)
        shapes = [each for each in self.inputs[name] if "shape" in each]
        if is_range:
            for each, tensor in zip(shapes, inputs, strict=True):
                if "tokens" in each["shape"]:
                    torch._dynamo.mark_dynamic(tensor, 0)
        found: list[Traced] = []

        def trace(graph: Any, examples: list[Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                outputs = graph(*given)
                found.append(Traced(graph, examples, list(given), list(outputs)))
                return outputs

            return call

        traced = torch.compile(self.module(name), backend=trace, fullgraph=True, dynamic=is_range)
        torch.use_deterministic_algorithms(True)  # noqa: FBT003  unwritten memory becomes NaN
        try:
            traced(*inputs)
        finally:
            torch.use_deterministic_algorithms(False)  # noqa: FBT003  as it was
        return found[0]


def start(folder: Path, sizes: Sequence[int], most: int, without: Sequence[str]) -> None:
    """Compile all pieces for the range up to *most* tokens and for *sizes*, as vLLM does.

    There is no range where *most* is 0. Options of *without* are not set. After each size a line
    has everything so far.
    """
    began = time.monotonic()
    import torch
    from torch._inductor import standalone_compile

    from warmup.inductor import connect

    pieces = Pieces(folder)
    seconds, errors = {}, {}
    is_gpu = pieces.device.type == "cuda"
    with torch.no_grad(), connect().count_benchmarks() as sites:
        if is_gpu:
            torch.cuda.synchronize()
        ready = time.monotonic()
        for size in (*([None] if most else []), *sizes):
            spent, worst = 0.0, 0.0
            for name in pieces.order:
                traced = pieces.trace(name, size or most, is_range=size is None)
                given = traced.examples if size is None else traced.inputs
                shapes = "from_graph" if size is None else "from_example_inputs"
                options = EVERY if size is None else {**EVERY, **SINGLE}
                options = {name: options[name] for name in options if name not in without}
                before = time.monotonic()
                compiled = standalone_compile(
                    traced.graph,
                    given,
                    dynamic_shapes=shapes,
                    options={"config_patches": options},
                )
                spent += time.monotonic() - before
                if size is None:
                    continue
                worst = max(worst, *map(_distance, compiled(*traced.inputs), traced.outputs))
            where = RANGE if size is None else str(size)
            seconds[where] = round(spent, 2)
            if size is not None:
                errors[where] = worst
            said = {
                "device": torch.cuda.get_device_name() if is_gpu else "cpu",
                "torch": torch.__version__,
                "pieces": len(pieces.order),
                "ready_s": round(ready - began, 2),
                "compile_s": seconds,
                "benchmarks": sites.total(),
                "benchmarks_by_site": dict(sites),
                "error": errors,
            }
            print(f"{_LINE}{json.dumps(said)}", flush=True)  # noqa: T201


def _distance(found: Any, expected: Any) -> float:
    """Return the distance of *found* from *expected*, over the norm of *expected*.

    It is 0 where *expected* was left unwritten, and infinite where *found* is not finite.
    """
    found, expected = found.double(), expected.double()
    if expected.isnan().all():
        return 0.0
    distance = ((found - expected).norm() / expected.norm()).item()
    return distance if math.isfinite(distance) else math.inf


class Measurement:
    """The starts of one run, each in a process of its own; results are kept as they come."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.deadline = time.monotonic() + asked.limit
        self.found: dict[str, Any] = {
            "machine": {"cpu": platform.machine(), "cores": len(os.sched_getaffinity(0))},
            "seqlens": asked.sizes,
            "most": asked.most,
        }
        self.starts: dict[str, dict[str, Any]] = {}

    def run(self, name: str, *words: str, kept_s: float = 0.0) -> int:
        """Run the program under *words*, with empty caches, and keep what it printed.

        Returns its exit code. It is ended *kept_s* seconds before the limit.
        """
        asked = self.asked
        program = [sys.executable, str(Path(__file__).resolve()), "start"]
        program += ["--pieces", str(asked.pieces), "--most", str(asked.most)]
        program += ["--sizes", ",".join(map(str, asked.sizes))]
        program += ["--without", ",".join(asked.without)] if asked.without else []
        left = self.deadline - time.monotonic() - kept_s
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            environment = {**os.environ, **caches_in(folder)}
            environment["PYTHONPATH"] = python_path()
            before = time.monotonic()
            log = asked.out.with_name(f"{asked.out.stem}-{name}.log")
            with log.open("w") as out:
                process = subprocess.Popen(
                    [*words, *program],
                    env=environment,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
                try:
                    code = process.wait(max(left, 1.0))
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    code = process.wait()
            wall = time.monotonic() - before
        text = log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.startswith(_LINE)]
        said = json.loads(lines[-1].removeprefix(_LINE)) if lines else {}
        self.found["machine"] |= {key: said.pop(key) for key in ("device", "torch") if key in said}
        self.starts[name] = {"start": name, "exit_code": code, "wall_s": round(wall, 1), **said}
        if code != 0:
            print(f"{name}: exit code {code}\n{text[-_SHOWN:]}")  # noqa: T201
        self.write()
        return code

    def audit(self, log: Path) -> None:
        """Keep the counts of the start from the table."""
        from warmup import audit

        report = audit([log])
        self.starts["table"] |= {
            "hits": sum(report.hits.values()),
            "misses": dict(report.reasons),
            "uncovered": sum(report.uncovered.values()),
            "contradicted": len(report.contradictions),
        }
        self.write()

    def write(self) -> None:
        """Write what there is so far."""
        write(self.asked.out, {**self.found, "starts": list(self.starts.values())})


def _names(text: str) -> list[str]:
    return text.split(",")


def measure(asked: argparse.Namespace) -> None:
    """Measure the three starts, in the order in which their results are needed."""
    measurement = Measurement(asked)
    table = asked.out.with_name(f"{asked.out.stem}-table.json")
    log = asked.out.with_name(f"{asked.out.stem}-audit.jsonl")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    warmup = [sys.executable, "-m", "warmup"]
    if measurement.run("online") != 0:
        raise SystemExit(1)
    build = [*warmup, "build", *asked.build, "--out", str(table), "--"]
    measurement.run("build", *build, kept_s=_TABLE_S)
    if table.exists():
        run = [*warmup, "run", "--table", str(table), "--audit-log", str(log), "--"]
        measurement.run("table", *run)
        measurement.audit(log)
    for name, each in measurement.starts.items():
        counts = {key: each.get(key) for key in ("benchmarks", "hits", "misses", "error")}
        print(f"{name}: {each['wall_s']} s, compile {each.get('compile_s')} s, {counts}")  # noqa: T201


def main() -> None:
    """Run what the first word asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("start", "measure"))
    parser.add_argument("--pieces", type=Path, required=True)
    parser.add_argument("--sizes", type=numbers, default=[8, 64])
    parser.add_argument("--most", type=int, default=8192, help="the end of the range; 0: none")
    parser.add_argument("--without", type=_names, default=[], help="options that are not set")
    parser.add_argument("--out", type=Path, default=Path("vllm-pieces.json"))
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds for all starts")
    parser.add_argument("--build", type=str.split, default=[], help="words for warmup build")
    asked = parser.parse_args()
    if asked.what == "start":
        start(asked.pieces, asked.sizes, asked.most, asked.without)
    else:
        measure(asked)


if __name__ == "__main__":
    main()
