"""Time generated kernels under default mode, max-autotune and a table; print JSON. Needs a GPU.

    python launch_race.py OUT.json [SECONDS [CASE ...]]

Each case is one function of one or two kernels. It is compiled from empty caches by default mode,
by max-autotune (with coordinate descent), by a build, and from the rows of that build. The calls of
all four are then timed in turn, each call a CUDA graph of its own after the L2 was overwritten.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.utils import fresh_cache
from torch.nn import functional

from warmup.bench.cells import provenance
from warmup.core.events import Emitter, Event
from warmup.core.method import L2, Launch
from warmup.core.trial import Tuned
from warmup.inductor import connect, start_workers
from warmup.measuring.clock import batch_of
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss, PolicyOptions, choose_policy
from warmup.tuning.tuner import make_tuner

ROUNDS = 40
MODES = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}
Function = Callable[..., Any]


def add_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return total, functional.layer_norm(total, total.shape[-1:], w, b, 1e-6)


def scale_add_norm(x: Any, y: Any, g: Any, w: Any, b: Any) -> Any:
    total = x + g * y
    return total, functional.layer_norm(total, total.shape[-1:], w, b, 1e-6)


def gelu(x: Any, b: Any) -> Any:
    return functional.gelu(x + b)


def softmax(x: Any) -> Any:
    return torch.softmax(x * 0.125, -1)


def rms_norm(x: Any, y: Any, w: Any) -> Any:
    total = (x + y).float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (total * scale).to(x.dtype) * w


def transpose(x: Any, y: Any) -> Any:
    return x.t() + y


def gated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return functional.silu(x[:, :half]) * x[:, half:]


def column_sum(x: Any) -> Any:
    return x.float().sum(0)


CASES: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "add, LayerNorm 10960 x 768": (add_norm, [(10960, 768), (10960, 768), (768,), (768,)]),
    "GELU 10960 x 3072": (gelu, [(10960, 3072), (3072,)]),
    "scale, add, LayerNorm 10960 x 768": (
        scale_add_norm,
        [(10960, 768), (10960, 768), (768,), (768,), (768,)],
    ),
    "add, RMSNorm 2048 x 4096": (rms_norm, [(2048, 4096), (2048, 4096), (4096,)]),
    "softmax 8192 x 2048": (softmax, [(8192, 2048)]),
    "transpose 4096 x 4096": (transpose, [(4096, 4096), (4096, 4096)]),
    "SwiGLU 2048 x 14336": (gated, [(2048, 28672)]),
    "add, RMSNorm 16 x 4096": (rms_norm, [(16, 4096), (16, 4096), (4096,)]),
    "column sum 8192 x 4096": (column_sum, [(8192, 4096)]),
}


def own_copy(function: Function, variant: str) -> Function:
    """Return *function* with a code object of its own, which dynamo compiles apart."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{variant.replace('-', '_')}")
    return types.FunctionType(code, function.__globals__, code.co_name)


def configs_since(before: set[int]) -> list[str]:
    """Return the configs of the kernels that were made since *before*, which ran."""
    return [str(one.launchers[0].config) for one in _kernels() if id(one) not in before]


def kernels_now() -> set[int]:
    return set(map(id, _kernels()))


def _kernels() -> list[Any]:
    # `isinstance` would ask weak references to objects that are gone.
    found: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), CachingAutotuner)]
    return [one for one in found if len(one.launchers) == 1]


class Race:
    """One case after the other; `results` grows."""

    def __init__(self) -> None:
        self.device = torch.device("cuda:0")
        self.inductor = connect()
        switches = self.inductor.quiet_switches()
        self.policy = choose_policy(PolicyOptions(), "cuda", switches)
        self.tuner = make_tuner(self.policy, self.device)
        self.results: dict[str, Any] = {}
        self.kept: list[Any] = []

    def run(self, name: str) -> None:
        function, shapes = CASES[name]
        generator = torch.Generator(self.device).manual_seed(0)
        like: Any = {"device": self.device, "dtype": torch.bfloat16, "generator": generator}
        inputs = [torch.randn(shape, **like) for shape in shapes]
        variants: dict[str, dict[str, Any]] = {}
        calls: dict[str, Function] = {"eager": function}
        for variant, mode in MODES.items():
            variants[variant], calls[variant] = self._compile(function, variant, inputs, mode)
        found: list[Tuned] = []
        variants["build"], calls["build"] = self._answered(function, "build", inputs, found)
        variants["table"], calls["table"] = self._answered(function, "table", inputs, found)
        wanted = function(*inputs)
        for variant, call in calls.items():
            variants.setdefault(variant, {})["error"] = _distance(call(*inputs), wanted)
        for variant, times in self._time(calls, inputs).items():
            low, middle, high = statistics.quantiles(times, n=4)
            variants[variant] |= {"us": round(middle, 2), "quartiles": [low, high]}
        rows = [
            {
                "key": one.key,
                "winner": str(one.row.winner),
                "us": one.row.evidence.time_us,
                "control_us": one.row.evidence.library_us,
                "flags": [flag.value for flag in one.row.evidence.flags],
                "searched": str(one.searched),
                "rejected": {str(why): count for why, count in one.row.evidence.rejected},
                "said": sorted({timing.said for timing in one.timings if timing.said}),
                "fastest": sorted(
                    (timing.time_us, str(timing.winner)) for timing in one.timings if timing.time_us
                )[:12],
            }
            for one in found
        ]
        self.results[name] = {"variants": variants, "rows": rows}

    def _compile(
        self, function: Function, variant: str, inputs: list[Any], mode: str | None
    ) -> tuple[dict[str, Any], Function]:
        compiled = torch.compile(own_copy(function, variant), dynamic=False, mode=mode)
        before, started = kernels_now(), time.monotonic()
        with fresh_cache(), self.inductor.count_benchmarks() as sites:
            compiled(*inputs)
            torch.cuda.synchronize()
        done = {
            "seconds": round(time.monotonic() - started, 2),
            "configs": configs_since(before),
            "benchmarks": dict(sites),
        }
        return done, compiled

    def _answered(
        self, function: Function, variant: str, inputs: list[Any], found: list[Tuned]
    ) -> tuple[dict[str, Any], Function]:
        """Build *function* into *found*; compile it from the rows where *found* has some."""
        events: list[Event] = []
        lookup = Lookup(
            {one.key: one.row for one in found},
            OnMiss.STRICT if found else OnMiss.FALLBACK,
            Emitter([events.append]),
            tuner=None if found else self.tuner,
            on_tuned=found.append,
        )
        attachment = self.inductor.attach(lookup, self.policy.options, variant, quiet=True)
        try:
            done, compiled = self._compile(function, variant, inputs, None)
        finally:
            attachment.detach()
        done["events"] = dict(Counter(event.name for event in events))
        return done, compiled

    def _time(self, calls: dict[str, Function], inputs: list[Any]) -> dict[str, list[float]]:
        batches = {
            variant: batch_of(
                lambda _number, call=call: call(*inputs), self.device, Launch.CUDAGRAPH, L2.COLD, 1
            )
            for variant, call in calls.items()
        }
        times: dict[str, list[float]] = {variant: [] for variant in batches}
        for _ in range(ROUNDS):
            for variant, batch in batches.items():
                times[variant].append(batch.time())
        return times


def _distance(found: Any, wanted: Any) -> float:
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return max(
        ((one.float() - other.float()).norm() / other.float().norm()).item() for one, other in pairs
    )


def table_of(results: dict[str, Any]) -> str:
    words = ("eager", "default", "max-autotune", "build", "table")
    lines = [f"{'us':34}" + "".join(f"{word:>13}" for word in words) + "  s (d/m/b)  searched"]
    for name, result in results.items():
        variants = result["variants"]
        if "table" not in variants:
            lines.append(f"{name:34}  {result}")
            continue
        line = f"{name:34}" + "".join(f"{variants[word]['us']:13.2f}" for word in words)
        seconds = [variants[word]["seconds"] for word in ("default", "max-autotune", "build")]
        searched = "; ".join(row["searched"] for row in result["rows"])
        lines.append(f"{line}  {'/'.join(f'{one:.1f}' for one in seconds)}  {searched}")
    return "\n".join(lines)


def main() -> None:
    out, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 600.0
    names = sys.argv[3:] or list(CASES)
    started = time.monotonic()
    start_workers("cuda:0")
    race, origin = Race(), provenance(torch.device("cuda:0"))
    with race.tuner:
        for name in names:
            if time.monotonic() - started > seconds:
                race.results[name] = {"variants": {}, "rows": [], "error": "no time left"}
                continue
            try:
                race.run(name)
            except Exception as error:  # noqa: BLE001  the other cases are worth having
                import traceback

                traceback.print_exc()
                text = f"{type(error).__name__}: {error}"[:300]
                race.results[name] = {"variants": {}, "rows": [], "error": text}
            document = {"origin": origin, "kernels": race.results}
            out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    sys.stdout.write(table_of(race.results) + "\n")


if __name__ == "__main__":
    main()
