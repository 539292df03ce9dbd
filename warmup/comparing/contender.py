"""One variant, in a process of its own: ``python -m warmup.comparing.contender FD``. Floor 2.

It makes the first output of every bucket, then answers requests to check and to time it, as
`warmup.comparing.remote` brings them. `warmup.comparing.compare` is the other end.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from warmup.bucket import Bucket, parse_inputs
from warmup.comparing.comparison import FirstOutput, How
from warmup.comparing.copies import Copies, copy_weights
from warmup.comparing.remote import Answer, serve
from warmup.comparing.tensors import check_shapes, digest_of, tensors_in
from warmup.measuring.clock import Batch, batch_of, wall_us
from warmup.method import L2, Launch
from warmup.models import Inputs, load_model, make_inputs, parse_dtype

if TYPE_CHECKING:
    from warmup.inductor.live import Inductor
    from warmup.serving import Handle

Call = Callable[..., Any]

_MODES: Final = {How.MAX_AUTOTUNE: "max-autotune-no-cudagraphs"}
_LIMIT_PER_BUCKET: Final = 8  # graphs of one function, as torch allows without buckets
_KIB: Final = 1024
_OUTPUTS: Final = "output-{}.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a contender is to start, in words that travel as JSON.

    ``spawned`` is when its process was started, by the clock of `time.monotonic`.
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


class Contender:
    """One model, compiled in one way, and its calls by bucket."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()  # as long as the process
        self._device = torch.device("cpu")
        self._module: torch.nn.Module | None = None
        self._served: Call | None = None
        self._inputs: list[Inputs] = []
        self._batches: list[Batch] = []

    def start(self, **case: Any) -> Answer:
        """Load, compile and call the model once in every bucket; answer with a `Start`, remarks."""
        given = Case(**case)
        self._device = torch.device(given.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._load(given)
        assert self._module is not None
        how = How(given.how)
        watch = self._watch(how, given)
        self._served = self._compiled(how)
        outputs = [self._first_output(i, given.spawned, watch) for i in range(len(self._inputs))]
        return {
            "outputs": [asdict(output) for output in outputs],
            "sites": watch.sites(),
            "miss_reasons": watch.miss_reasons(),
            "remarks": watch.remarks(),
        }

    def demand(self) -> Answer:
        """Answer with the `Demand` of every bucket, the dtype, and what could not be counted."""
        from warmup.comparing.demand import demand_of

        assert self._module is not None
        remarks: dict[str, None] = {}  # each bucket has the same, which is told once
        demands = []
        for made in self._inputs:
            demand, uncounted = demand_of(self._module, made.args, made.kwargs)
            demands.append(asdict(demand))
            remarks |= dict.fromkeys(uncounted)
        return {"demands": demands, "dtype": self._dtype(), "remarks": list(remarks)}

    def peaks(self) -> Answer:
        """Answer with the `Peaks` of the device, none of a CPU, or why they are not known."""
        from warmup.measuring.ceilings import measured_peaks

        try:
            found = measured_peaks(self._device)
        except RuntimeError as error:  # torch's own, for want of memory for example
            return {"peaks": None, "remarks": [f"the peaks are not known: {error}"]}
        if found is None:
            return {"peaks": None, "remarks": []}
        torch.cuda.empty_cache()
        return {"peaks": {**asdict(found), "tflops": dict(found.tflops)}, "remarks": []}

    def keep_outputs(self, folder: str) -> Answer:
        """Write the outputs of every bucket to *folder*, for the others to be compared with."""
        for number in range(len(self._inputs)):
            torch.save(self._outputs(number), Path(folder) / _OUTPUTS.format(number))
        return {}

    def agree(self, folder: str) -> Answer:
        """Answer with the error and its limit against the outputs in *folder*, by bucket.

        With them go digests of the weights and of the inputs.
        """
        from warmup.agreement import worst_error
        from warmup.policies import TOLERANCE

        errors = []
        for number in range(len(self._inputs)):
            expected = torch.load(
                Path(folder) / _OUTPUTS.format(number), map_location=self._device, weights_only=True
            )
            found = self._outputs(number)
            check_shapes(expected, found)
            errors.append(worst_error(expected, found, TOLERANCE))
        assert self._module is not None
        weights = digest_of(dict(self._module.named_parameters()))
        inputs = digest_of([(made.args, made.kwargs) for made in self._inputs])
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return {"errors": errors, "weights": weights, "inputs": inputs}

    def prepare(self, launch: str, l2: str) -> Answer:
        """Make every bucket ready to be timed."""
        assert self._module is not None
        copies = copy_weights(self._module, self._device) if l2 == L2.COLD else None
        for number in range(len(self._inputs)):
            call = self._numbered(number, copies)
            sets = 1 if copies is None else len(copies)
            self._batches.append(batch_of(call, self._device, Launch(launch), L2(l2), sets))
        return {}

    def time(self, bucket: int) -> Answer:
        """Answer with the device time of a call, and the host's of one that is waited for."""
        batch = self._batches[bucket]
        batch.time()  # the device has just worked for another process
        device_us = batch.time()
        wall = wall_us(self._numbered(bucket), self._device, 1)[1]
        return {"device_us": round(device_us, 3), "wall_us": round(wall, 3)}

    def _load(self, case: Case) -> None:
        dtype = parse_dtype(case.dtype, "--dtype") if case.dtype is not None else None
        torch.manual_seed(case.seed)
        model = load_model(case.model)
        self._module = model.module.to(device=self._device, dtype=dtype)
        specs = parse_inputs(case.inputs)
        for sizes in case.buckets:
            bucket = Bucket(tuple((name, size) for name, size in sizes))
            torch.manual_seed(case.seed)
            self._inputs.append(make_inputs(model, specs, bucket, self._device, dtype))

    def _dtype(self) -> str:
        """Return the dtype of the weights, else of the inputs, or how products are computed."""
        from warmup.inductor.epilogues import dtype_name

        assert self._module is not None
        given = tensors_in([(one.args, one.kwargs) for one in self._inputs])
        tensors = itertools.chain(self._module.parameters(), given)
        floats = (one.dtype for one in tensors if one.is_floating_point())
        name = dtype_name(next(floats, torch.float32))
        is_tf32 = self._device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        return "tf32" if name == "f32" and is_tf32 else name

    def _watch(self, how: How, case: Case) -> _Watch:
        """Count benchmarks from now on; with a table, install it."""
        if how is How.EAGER:
            return _Watch(Counter(), None)
        if how.is_served:
            from warmup.serving import install

            model = self._module if how is How.TABLE_PADDED else None
            handle = install(case.table, device=case.device, model=model)
            return _Watch(Counter(), self._open.enter_context(handle))
        from warmup.inductor import connect

        inductor: Inductor = connect()
        return _Watch(self._open.enter_context(inductor.count_benchmarks()), None)

    def _compiled(self, how: How) -> Call:
        assert self._module is not None
        if how is How.EAGER:
            return self._module
        from warmup.inductor.live import compile_model

        # A bucket is a graph; past its limit torch would run the model uncompiled, and only warn.
        torch.compiler.config.recompile_limit = _LIMIT_PER_BUCKET * len(self._inputs)
        torch.compiler.config.fail_on_recompile_limit_hit = True
        return compile_model(self._module, _MODES.get(how))

    def _first_output(self, number: int, spawned: float, watch: _Watch) -> FirstOutput:
        before, begun = watch.counts(), time.monotonic()
        self._call(number)
        self._synchronize()
        done = time.monotonic()
        after = watch.counts()
        benchmarks, hits, misses = (
            None if a is None or b is None else a - b for a, b in zip(after, before, strict=True)
        )
        return FirstOutput(
            process_seconds=round(done - spawned, 3),
            call_seconds=round(done - begun, 3),
            benchmarks=benchmarks or 0,
            hits=hits,
            misses=misses,
            peak_bytes=self._peak_bytes(),
        )

    def _call(self, number: int) -> Any:
        assert self._served is not None
        made = self._inputs[number]
        return self._served(*made.args, **made.kwargs)

    def _numbered(self, bucket: int, copies: Copies | None = None) -> Callable[[int], object]:
        def numbered(number: int) -> object:
            if copies is not None:
                copies.take(number)
            return self._call(bucket)

        return numbered

    def _outputs(self, number: int) -> list[torch.Tensor]:
        return tensors_in(self._call(number))

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _peak_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        import resource

        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return resident if sys.platform == "darwin" else resident * _KIB


@dataclass(frozen=True, slots=True)
class _Watch:
    """What inductor measured and asked so far."""

    counted: Counter[str]
    handle: Handle | None

    def counts(self) -> tuple[int, int | None, int | None]:
        """Return benchmarks, hits and misses; the latter two are None without a table."""
        if self.handle is None:
            return sum(self.counted.values()), None, None
        report = self.handle.report()
        return (
            sum(report.uncovered.values()),
            sum(report.hits.values()),
            sum(report.misses.values()),
        )

    def sites(self) -> dict[str, int]:
        """Return benchmarks by site."""
        return dict(self.counted if self.handle is None else self.handle.report().uncovered)

    def miss_reasons(self) -> dict[str, int]:
        """Return misses by reason."""
        return {} if self.handle is None else dict(self.handle.report().miss_reasons)

    def remarks(self) -> list[str]:
        """Return what was padded, where weights were to be."""
        prepared = None if self.handle is None else self.handle.prepared
        return [] if prepared is None else [prepared.summary]


def _main(answers: int) -> None:
    contender = Contender()
    requests = (
        contender.start,
        contender.demand,
        contender.peaks,
        contender.keep_outputs,
        contender.agree,
        contender.prepare,
        contender.time,
    )
    with torch.no_grad():
        serve({handler.__name__: handler for handler in requests}, answers)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
