"""Compile generated kernels by default mode, by a build and from its rows; needs a GPU.

    python launch_race.py OUT.json

Each case is one function of one or two kernels, compiled from empty caches. The JSON has what each
compile did, the error of its output against eager's, and the rows of the build.
"""

from __future__ import annotations

import json
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.utils import fresh_cache
from torch.nn import functional

from warmup.core.events import Emitter, Event
from warmup.core.trial import Tuned
from warmup.inductor import connect, start_workers
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss, PolicyOptions, choose_policy
from warmup.tuning.tuner import make_tuner

Function = Callable[..., Any]


def add_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return total, functional.layer_norm(total, total.shape[-1:], w, b, 1e-6)


def gelu(x: Any, b: Any) -> Any:
    return functional.gelu(x + b)


def rms_norm(x: Any, y: Any, w: Any) -> Any:
    total = (x + y).float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (total * scale).to(x.dtype) * w


def transpose(x: Any, y: Any) -> Any:
    return x.t() + y


CASES: dict[Function, list[tuple[int, ...]]] = {
    add_norm: [(10960, 768), (10960, 768), (768,), (768,)],
    gelu: [(10960, 3072), (3072,)],
    rms_norm: [(2048, 4096), (2048, 4096), (4096,)],
    transpose: [(4096, 4096), (4096, 4096)],
}


class Race:
    def __init__(self) -> None:
        self.device = torch.device("cuda:0")
        self.inductor = connect()
        self.policy = choose_policy(PolicyOptions(), "cuda", self.inductor.quiet_switches())
        self.tuner = make_tuner(self.policy, self.device)

    def run(self, function: Function, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
        generator = torch.Generator(self.device).manual_seed(0)
        like: Any = {"device": self.device, "dtype": torch.bfloat16, "generator": generator}
        inputs, found = [torch.randn(shape, **like) for shape in shapes], list[Tuned]()
        variants = {"default": self._compile(function, "default", inputs)}
        for variant in ("build", "table"):
            variants[variant] = self._answered(function, variant, inputs, found)
        rows = [
            {
                "searched": str(one.searched),
                "rejected": {str(why): count for why, count in one.row.evidence.rejected},
                "said": sorted({timing.said for timing in one.timings if timing.said}),
            }
            for one in found
        ]
        return {"variants": variants, "rows": rows}

    def _compile(self, function: Function, variant: str, inputs: list[Any]) -> dict[str, Any]:
        # A code object of its own, which dynamo compiles apart.
        code = function.__code__.replace(co_name=f"{function.__name__}_{variant}")
        own = types.FunctionType(code, function.__globals__, code.co_name)
        compiled = torch.compile(own, dynamic=False)
        with fresh_cache(), self.inductor.count_benchmarks() as sites:
            compiled(*inputs)
            torch.cuda.synchronize()
        error = _distance(compiled(*inputs), function(*inputs))
        return {"benchmarks": dict(sites), "error": error}

    def _answered(
        self, function: Function, variant: str, inputs: list[Any], found: list[Tuned]
    ) -> dict[str, Any]:
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
            done = self._compile(function, variant, inputs)
        finally:
            attachment.detach()
        return {**done, "events": dict(Counter(event.name for event in events))}


def _distance(found: Any, wanted: Any) -> float:
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return max(
        float((one.float() - other.float()).norm() / other.float().norm()) for one, other in pairs
    )


def main() -> None:
    start_workers("cuda:0")
    race = Race()
    with race.tuner:
        results = {each.__name__: race.run(each, shapes) for each, shapes in CASES.items()}
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
