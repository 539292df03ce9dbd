"""`record_trace`: serves buckets of a model under torch's profiler, and keeps the kernels' plan.

The trace's file is torch's own, with one more member, the plan of `warmup.core.planned_kernels`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.buckets.bucket import parse_buckets, parse_inputs
from warmup.core.compile_modes import COMPILE_MODES
from warmup.core.errors import ModelError, SettingsError
from warmup.core.files import replace_bytes
from warmup.core.method import SEED
from warmup.core.planned_kernels import BUCKET_MARK, PLAN_NAME, GraphPlan, RecordedPlan
from warmup.serving.install import install
from warmup.table import Table
from warmup.table.codec import digest_of

if TYPE_CHECKING:
    import torch

    from warmup.models.loading import Inputs

RECORDED_CALLS: Final = 10  # of each bucket
_SETTLING_CALLS: Final = 3  # a CUDA graph is recorded by the second call of a bucket


def record_trace(
    out: Path,
    *,
    model: str,
    table: Table | None,
    seqlens: str | Sequence[int] | None,
    dims: str | Sequence[str] | None,
    inputs: Sequence[str],
    dtype: str | None,
    device: str,
    mode: str,
) -> None:
    """Write a trace of *model*, served from *table*, to *out*; gzipped where it ends in ``.gz``.

    The graph of each bucket is compiled anew, called a few times, then called under the profiler,
    each call between marks with the bucket's name. The table, if there is one, is installed as a
    server does, its padding of weights included, and a miss takes inductor's default. Arguments
    have the form of the command line's options.

    Raises:
        SettingsError, ModelError: an option or the model cannot be used, or *out* not be written.
    """
    if mode not in COMPILE_MODES:
        raise SettingsError(f"--mode {mode!r}", f"use one of {', '.join(COMPILE_MODES)}")
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    import torch

    from warmup.inductor.adapter import compile_model
    from warmup.inductor.kernel_plans import fresh_graphs, watching_plans
    from warmup.inductor.machine import describe_runtime, resolve_device
    from warmup.models.inferred_inputs import resolve_inputs
    from warmup.models.loading import load_model, make_inputs, parse_cast

    on, cast = resolve_device(device), parse_cast(dtype)
    loaded = load_model(model)
    resolved = resolve_inputs(loaded, specs, buckets, cast)
    try:
        loaded.module.to(device=on, dtype=cast)
    except RuntimeError as error:
        raise ModelError(f"the model does not fit on {on} ({error})") from error
    runtime = describe_runtime(on)
    with contextlib.ExitStack() as stack:
        if table is not None:
            handle = install(table, device=str(on), model=loaded.module, quiet=True)
            stack.enter_context(handle)
            if handle.refused is not None:
                raise SettingsError(handle.refused, "record on the machine of the table")
        torch.compiler.config.recompile_limit = 8 * len(buckets)
        stack.enter_context(torch.no_grad())
        stack.enter_context(fresh_graphs())
        compiled = compile_model(loaded.module, mode)
        plans: dict[str, tuple[GraphPlan, ...]] = {}
        ready: dict[str, Inputs] = {}
        for bucket in buckets:
            torch.manual_seed(SEED)
            given = make_inputs(loaded, resolved.specs, bucket, on, cast)
            with watching_plans() as watch:
                for _ in range(_SETTLING_CALLS):
                    compiled(*given.args, **given.kwargs)
                plans[str(bucket)] = watch.plans()
            ready[str(bucket)] = given
        document, clocks = _profile(compiled, ready, on)
    plan = RecordedPlan(
        plans=plans,
        calls=RECORDED_CALLS,
        device=runtime.device.name,
        torch=runtime.torch,
        table=None if table is None else digest_of(table),
        clocks=clocks,
    )
    raw = json.dumps({**document, PLAN_NAME: plan.to_json()}, separators=(",", ":")).encode()
    try:
        replace_bytes(out, gzip.compress(raw, mtime=0) if out.suffix == ".gz" else raw)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--record {out}: cannot be written ({error})", "name a file"
        ) from error


def _profile(
    compiled: Any, ready: dict[str, Inputs], device: torch.device
) -> tuple[Any, tuple[int, ...]]:
    """Return the trace's document, and the clocks that were seen while the buckets were called."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from warmup.measuring.gpu_state import sm_clock_mhz

    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    clocks: list[int] = []

    def synchronize() -> None:
        if is_cuda:
            torch.cuda.synchronize(device)

    synchronize()
    with profile(activities=activities, record_shapes=True) as profiler:
        for name, inputs in ready.items():
            compiled(*inputs.args, **inputs.kwargs)  # the profiler's own first call
            synchronize()
            for _ in range(RECORDED_CALLS):
                with record_function(f"{BUCKET_MARK}{name}"):
                    compiled(*inputs.args, **inputs.kwargs)
                    synchronize()
            if is_cuda:  # the clock is that of a call in flight, which is outside of any mark
                compiled(*inputs.args, **inputs.kwargs)
                clock = sm_clock_mhz(device)
                clocks += [] if clock is None else [clock]
                synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_bytes()), tuple(clocks)
