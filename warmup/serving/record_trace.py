"""`record_trace`: serves buckets of a model under torch's profiler, and keeps the kernels' plan.

The trace's file is torch's own, with one more member, the plan of `warmup.core.planned_kernels`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.buckets.bucket import Bucket, InputSpec, parse_buckets, parse_inputs
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

    from warmup.models.loading import LoadedModel

RECORDED_CALLS: Final = 10  # of each bucket
_SETTLING_CALLS: Final = 3  # a CUDA graph is recorded by the second call of a bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What is served while a trace is recorded; the fields have the form of the options."""

    model: str
    table: Table | None = None
    seqlens: str | Sequence[int] | None = None
    dims: str | Sequence[str] | None = None
    inputs: Sequence[str] = ()
    device: str = "auto"
    dtype: str | None = None
    mode: str = "default"


def record_trace(asked: Recording, out: Path) -> RecordedPlan:
    """Write a trace of *asked* to *out*, gzipped where its name ends in ``.gz``; return its plan.

    The graph of each bucket is compiled anew, called a few times, then called under the profiler,
    each call between marks with the bucket's name. The table, if there is one, is installed as a
    server does, its padding of weights included, and a miss takes inductor's default.

    Raises:
        SettingsError, ModelError: an option or the model cannot be used, or *out* not be written.
    """
    if asked.mode not in COMPILE_MODES:
        raise SettingsError(f"--mode {asked.mode!r}", f"use one of {', '.join(COMPILE_MODES)}")
    buckets, specs = parse_buckets(asked.seqlens, asked.dims), parse_inputs(asked.inputs)
    from warmup.inductor.machine import describe_runtime, resolve_device
    from warmup.models.inferred_inputs import resolve_inputs
    from warmup.models.loading import load_model, parse_cast

    device, cast = resolve_device(asked.device), parse_cast(asked.dtype)
    loaded = load_model(asked.model)
    resolved = resolve_inputs(loaded, specs, buckets, cast)
    try:
        loaded.module.to(device=device, dtype=cast)
    except RuntimeError as error:
        raise ModelError(f"the model does not fit on {device} ({error})") from error
    runtime = describe_runtime(device)
    with contextlib.ExitStack() as stack:
        if asked.table is not None:
            stack.enter_context(
                install(asked.table, device=str(device), model=loaded.module, quiet=True)
            )
        served = _ProfiledModel(loaded, resolved.specs, device, cast, asked)
        plans, events = served.run(buckets)
    plan = RecordedPlan(
        plans=plans,
        calls=RECORDED_CALLS,
        device=runtime.device.name,
        torch=runtime.torch,
        table=None if asked.table is None else digest_of(asked.table),
        clocks=tuple(served.clocks),
    )
    _write({**events, PLAN_NAME: plan.to_json()}, out)
    return plan


class _ProfiledModel:
    """A compiled model that is called in its buckets; ``clocks`` are those seen meanwhile."""

    def __init__(
        self,
        loaded: LoadedModel,
        specs: tuple[InputSpec, ...],
        device: torch.device,
        cast: torch.dtype | None,
        asked: Recording,
    ) -> None:
        self._loaded, self._specs, self._cast = loaded, specs, cast
        self._device, self._asked = device, asked
        self.clocks: list[int] = []

    def run(self, buckets: Sequence[Bucket]) -> tuple[Mapping[str, tuple[GraphPlan, ...]], Any]:
        """Return the plan of each bucket, and the document of the trace."""
        import torch

        from warmup.inductor.kernel_plans import fresh_graphs, watching_plans
        from warmup.models.loading import make_inputs

        torch.compiler.config.recompile_limit = 8 * len(buckets)
        plans: dict[str, tuple[GraphPlan, ...]] = {}
        with torch.no_grad(), fresh_graphs():
            mode = None if self._asked.mode == "default" else self._asked.mode
            compiled = torch.compile(self._loaded.module, dynamic=False, mode=mode)
            ready = []
            for bucket in buckets:
                torch.manual_seed(SEED)
                inputs = make_inputs(self._loaded, self._specs, bucket, self._device, self._cast)
                with watching_plans() as watch:
                    for _ in range(_SETTLING_CALLS):
                        compiled(*inputs.args, **inputs.kwargs)
                    plans[str(bucket)] = watch.plans()
                ready.append((str(bucket), inputs))
            with self._profiled() as profiler:
                for name, inputs in ready:
                    compiled(*inputs.args, **inputs.kwargs)  # the profiler's own first call
                    self._synchronize()
                    for _ in range(RECORDED_CALLS):
                        with torch.profiler.record_function(f"{BUCKET_MARK}{name}"):
                            compiled(*inputs.args, **inputs.kwargs)
                            self._synchronize()
                    self._note_clock(compiled, inputs)
        return plans, _document(profiler)

    @contextlib.contextmanager
    def _profiled(self) -> Iterator[torch.profiler.profile]:
        import torch
        from torch.profiler import ProfilerActivity

        activities = [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        self._synchronize()
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            yield profiler
            self._synchronize()

    def _note_clock(self, compiled: Any, inputs: Any) -> None:
        """Read the clock while calls are in flight, which the trace has outside of any mark."""
        if self._device.type != "cuda":
            return
        from warmup.measuring.gpu_state import sm_clock_mhz

        compiled(*inputs.args, **inputs.kwargs)
        clock = sm_clock_mhz(self._device)
        self.clocks += [] if clock is None else [clock]
        self._synchronize()

    def _synchronize(self) -> None:
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _document(profiler: torch.profiler.profile) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_bytes())


def _write(document: Mapping[str, Any], out: Path) -> None:
    raw = json.dumps(document, separators=(",", ":")).encode()
    try:
        replace_bytes(out, gzip.compress(raw, mtime=0) if out.suffix == ".gz" else raw)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--record {out}: cannot be written ({error})", "name a file"
        ) from error
