"""What ran in the first call of a compiled MLP beyond one plain call, as the profiler sees it.

    python watch_launches.py TABLE|MODE DEVICE

MODE is default or max-autotune, without a table. The JSON has ``extra``, the library's products and
the generated kernels that ran more often in the compiling call than in the call after it: on a CPU
also those that dynamo and inductor trace without computing. ``counted`` is what warmup counts, and
not read for ``extra``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch._inductor import config
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from mlp import MLP, example_inputs

import warmup

MODES = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}
LIBRARY = ("aten::mm", "aten::addmm", "mkl::_mkl_linear", "mkldnn::_linear_pointwise")


def launches(call: Callable[[], object], device: str) -> Counter[str]:
    """Return how often each product and each generated kernel runs in *call*."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    settings = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=activities, experimental_config=settings) as seen:
        call()
    events = [event for event in seen.events() if device == "cpu" or event.device_type.value == 1]
    is_kernel = LIBRARY.__contains__ if device == "cpu" else bool
    return Counter(
        event.name for event in events if is_kernel(event.name) or event.name.startswith("graph_")
    )


def main() -> None:
    table, device = sys.argv[1:]
    config.cpp.enable_kernel_profile = True
    model, inputs = MLP().eval().to(device), (example_inputs(64).to(device),)
    handle = None
    if table in MODES:
        config.freezing = True
        served = torch.compile(model, dynamic=False, mode=MODES[table])
    else:
        handle = warmup.install(table, on_miss="strict", uncovered="forbid", freezing=True)
        served = torch.compile(model, dynamic=False)
    with torch.no_grad():
        first = launches(lambda: served(*inputs), device)
        later = launches(lambda: served(*inputs), device)
    counted = None
    if handle is not None:
        report = handle.report()
        counted = {name: getattr(report, name) for name in ("hits", "misses", "uncovered")}
    print(json.dumps({"extra": first - later, "once": later, "counted": counted}))  # noqa: T201  the result


if __name__ == "__main__":
    main()
