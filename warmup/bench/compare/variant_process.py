"""`VariantProcess`: the child process of a variant, which answers the requests of `compare`.

Run as ``python -m warmup.bench.compare.variant_process FD``. The process computes the first outputs
of every bucket, then checks and times them on request. `warmup.bench.compare.race` sends the
requests, through `warmup.bench.compare.remote`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from warmup.bench.compare.comparison import How
from warmup.bench.compare.copies import Copies, copy_operands
from warmup.bench.compare.inductor_watch import InductorWatch, watching
from warmup.bench.compare.remote import Answer, serve
from warmup.bench.compare.tensors import check_shapes, digest_of, tensors_in
from warmup.buckets.bucket import Bucket, parse_inputs
from warmup.core.method import L2, Launch
from warmup.core.phases import Phase, PhaseClock, document_of
from warmup.measuring.clock import Batch, batch_of, wall_us
from warmup.models.dtype_mismatch import naming_dtypes
from warmup.models.inferred_inputs import resolve_inputs
from warmup.models.loading import Inputs, load_model, make_inputs, parse_cast

CompiledCall = Callable[..., Any]

_MODE_OF: Final = {How.MAX_AUTOTUNE: "max-autotune-no-cudagraphs"}
_LIMIT_PER_BUCKET: Final = 8  # torch's default limit of graphs of a function
_KIB: Final = 1024
_OUTPUTS: Final = "output-{}.pt"
_LONELY: Final = "no room for copies of its weights and inputs: each call is timed alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The model that a process starts, how it is compiled, and its buckets; sent as JSON.

    ``spawned`` is the time at which the process was started, by `time.monotonic`.
    """

    model: str
    how: str
    table: str | None
    buckets: Sequence[Sequence[tuple[str, int]]]
    inputs: Sequence[str]
    device: str
    dtype: str | None
    seed: int
    spawned: float


class VariantProcess:
    """A compiled model and its inputs by bucket. Each public method answers a request."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()  # never closed: the process ends with it open
        self._device = torch.device("cpu")
        self._module: torch.nn.Module | None = None
        self._served: CompiledCall | None = None
        self._inputs: list[Inputs] = []
        self._assumptions: list[str] = []
        self._batches: list[Batch] = []

    def start(self, **case: Any) -> Answer:
        """Load, compile and call the model in every bucket; answer with a `Start` and remarks."""
        given = Case(**case)
        clock = PhaseClock(since=given.spawned)
        clock.charge(Phase.IMPORT)
        self._device = torch.device(given.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        with clock.phase(Phase.LOAD):
            self._load(given)
        assert self._module is not None
        how = How(given.how)
        padded = self._module if how is How.TABLE_PADDED else None
        watch = self._open.enter_context(watching(how, given.table, given.device, padded, clock))
        self._served = self._compiled(how)
        before = clock.take()
        outputs = [
            self._first_output(i, given.spawned, watch, clock) for i in range(len(self._inputs))
        ]
        return {
            "phases_before": document_of(before),
            "outputs": outputs,
            "sites": watch.sites(),
            "miss_reasons": watch.miss_reasons(),
            "remarks": watch.remarks(),
        }

    def demand(self) -> Answer:
        """Answer with the `Demand` of every bucket, the dtype, and remarks.

        Remarks are on numbers that are unknown, and on the model and inputs that nobody named.
        """
        from warmup.bench.compare.demand import demand_of

        assert self._module is not None
        # Buckets share remarks, which are reported once.
        remarks: dict[str, None] = dict.fromkeys(self._assumptions)
        demands = []
        for inputs in self._inputs:
            demand, uncounted = demand_of(self._module, inputs.args, inputs.kwargs)
            demands.append(asdict(demand))
            remarks |= dict.fromkeys(uncounted)
        return {"demands": demands, "dtype": self._dtype(), "remarks": list(remarks)}

    def peaks(self) -> Answer:
        """Answer with the `Peaks` of the device; null on a CPU, or with a remark if unknown."""
        from warmup.measuring.device_peaks import measured_peaks

        try:
            peaks = measured_peaks(self._device)
        except RuntimeError as error:  # raised by torch, as when memory runs out
            return {"peaks": None, "remarks": [f"the peaks are not known: {error}"]}
        if peaks is None:
            return {"peaks": None, "remarks": []}
        torch.cuda.empty_cache()
        return {"peaks": {**asdict(peaks), "tflops": dict(peaks.tflops)}, "remarks": []}

    def keep_outputs(self, folder: str) -> Answer:
        """Write the outputs of every bucket to *folder*, as the reference of `agree`."""
        for number in range(len(self._inputs)):
            torch.save(self._outputs(number), Path(folder) / _OUTPUTS.format(number))
        return {}

    def agree(self, folder: str) -> Answer:
        """Answer with the error against the outputs in *folder* and its limit, by bucket.

        The answer also has digests of the weights and of the inputs.
        """
        from warmup.models.outputs import worst_error
        from warmup.table.policy import TOLERANCE

        errors = []
        for number in range(len(self._inputs)):
            expected = torch.load(
                Path(folder) / _OUTPUTS.format(number), map_location=self._device, weights_only=True
            )
            outputs = self._outputs(number)
            check_shapes(expected, outputs)
            errors.append(worst_error(expected, outputs, TOLERANCE))
        assert self._module is not None
        weights = digest_of(dict(self._module.named_parameters()))
        inputs = digest_of([(given.args, given.kwargs) for given in self._inputs])
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return {"errors": errors, "weights": weights, "inputs": inputs}

    def release(self) -> Answer:
        """Free the graphs and the copies that an earlier `prepare` made."""
        self._batches.clear()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return {}

    def room(self) -> Answer:
        """Answer with the bytes that the copies of all variants on this device may take."""
        if self._device.type == "cpu":  # its kernels may use packed weights, not these
            return {"bytes": 0}
        return {"bytes": torch.cuda.mem_get_info(self._device)[0] // 2}

    def prepare(self, launch: str, l2: str, room: int) -> Answer:
        """Prepare the timing of every bucket, with up to *room* bytes of copies for a cold L2.

        Answer with remarks for the report.
        """
        assert self._module is not None
        is_cold = l2 == L2.COLD
        copies = copy_operands(self._module, self._inputs, room) if is_cold else None
        for number in range(len(self._inputs)):
            call = self._numbered(number, copies)
            sets = 1 if copies is None else len(copies)
            self._batches.append(batch_of(call, self._device, Launch(launch), L2(l2), sets))
        lonely = copies is not None and len(copies) == 1 and self._device.type != "cpu"
        return {"remarks": [_LONELY] if lonely else []}

    def time(self, bucket: int) -> Answer:
        """Answer with the device time of a call, and the host's time for another one.

        That is the time until the call is enqueued, and until its outputs are ready.
        """
        batch = self._batches[bucket]
        batch.time()  # not reported: the device has just worked for another process
        device_us = batch.time()
        enqueued, ready = wall_us(self._numbered(bucket), self._device, 1)
        times = {"device_us": device_us, "host_us": enqueued, "wall_us": ready}
        return {name: round(time_us, 3) for name, time_us in times.items()}

    def _load(self, case: Case) -> None:
        dtype = parse_cast(case.dtype)
        torch.manual_seed(case.seed)
        model = load_model(case.model)
        buckets = [Bucket(tuple((name, size) for name, size in sizes)) for sizes in case.buckets]
        resolved = resolve_inputs(model, parse_inputs(case.inputs), buckets, dtype)
        self._assumptions = [str(assumption) for assumption in resolved.assumptions]
        self._module = model.module.to(device=self._device, dtype=dtype)
        for bucket in buckets:
            torch.manual_seed(case.seed)
            self._inputs.append(make_inputs(model, resolved.specs, bucket, self._device, dtype))

    def _dtype(self) -> str:
        """Return the dtype of the weights, else of the inputs; tf32 where GEMMs of f32 use it."""
        from warmup.core.dtypes import dtype_name

        assert self._module is not None
        inputs = tensors_in([(given.args, given.kwargs) for given in self._inputs])
        tensors = itertools.chain(self._module.parameters(), inputs)
        floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        name = dtype_name(next(floats, torch.float32))
        is_tf32 = self._device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        return "tf32" if name == "f32" and is_tf32 else name

    def _compiled(self, how: How) -> CompiledCall:
        assert self._module is not None
        if how is How.EAGER:
            return self._module
        from warmup.inductor.adapter import compile_model

        # Each bucket is a graph; past the limit torch would run the model uncompiled and only warn.
        torch.compiler.config.recompile_limit = _LIMIT_PER_BUCKET * len(self._inputs)
        torch.compiler.config.fail_on_recompile_limit_hit = True
        return compile_model(self._module, _MODE_OF.get(how))

    def _first_output(
        self, number: int, spawned: float, watch: InductorWatch, clock: PhaseClock
    ) -> Answer:
        before = watch.counts()
        assert self._module is not None
        with clock.phase(Phase.FIRST_CALLS), naming_dtypes(self._module, self._inputs[number]):
            self._call(self._inputs[number])
            self._synchronize()
        done, phases = time.monotonic(), clock.take()
        benchmarks, hits, misses = (
            None if a is None or b is None else a - b
            for a, b in zip(watch.counts(), before, strict=True)
        )
        return {
            "process_seconds": round(done - spawned, 3),
            "phases": document_of(phases),
            "benchmarks": benchmarks or 0,
            "hits": hits,
            "misses": misses,
            "peak_bytes": self._peak_bytes(),
        }

    def _call(self, inputs: Inputs) -> Any:
        assert self._served is not None
        return self._served(*inputs.args, **inputs.kwargs)

    def _numbered(self, bucket: int, copies: Copies | None = None) -> Callable[[int], object]:
        def numbered(number: int) -> object:
            own = self._inputs[bucket]
            return self._call(own if copies is None else copies.take(bucket, number))

        return numbered

    def _outputs(self, number: int) -> list[torch.Tensor]:
        return tensors_in(self._call(self._inputs[number]))

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _peak_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        import resource

        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return resident if sys.platform == "darwin" else resident * _KIB


def _main(answers: int) -> None:
    process = VariantProcess()
    requests = (
        process.start,
        process.demand,
        process.peaks,
        process.keep_outputs,
        process.agree,
        process.release,
        process.room,
        process.prepare,
        process.time,
    )
    with torch.no_grad():
        serve({handler.__name__: handler for handler in requests}, answers)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
