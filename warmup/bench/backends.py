"""`bench`: backends of layers and of plain GEMMs, each checked against a reference, timed in turns.

Eager, inductor's backends and the table's are those of every layer; `layers` has the layers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.bench.cells import EAGER, TABLE, BenchReport, BenchRequest, Cell, Pass, reason_of
from warmup.bench.layers import (
    LIBRARIES,
    Matmul,
    OpenLayer,
    Operator,
    Sizes,
    choose,
    library,
    open_layers,
    parse_shapes,
    spell_shape,
)
from warmup.core.errors import BuildError, OutputMismatchError, SettingsError
from warmup.core.files import make_folder, temporary_folder
from warmup.core.rows import L2, SEED, Launch, OptionValue
from warmup.core.text import __version__
from warmup.core.trial import Samples
from warmup.inductor import connect
from warmup.inductor.caches import empty_caches, with_own_code
from warmup.inductor.host_facts import version_of
from warmup.inductor.machine import check_compiler, resolve_device
from warmup.inductor.options import compiling_with
from warmup.measuring.clock import Batch, batch_of, run_rounds
from warmup.measuring.machine import measured_peaks
from warmup.measuring.reference import (
    MAX_OPERAND_SETS,
    full_precision,
    judge_output,
    operand_room,
    wide_dtype,
)
from warmup.models.loading import parse_dtype
from warmup.serving.install import InstallRequest, install_as
from warmup.table.codec import digest_of
from warmup.table.schema import TOLERANCE, Table
from warmup.table.store import read
from warmup.tuning.build import BuildOptions
from warmup.tuning.model import build_model

DTYPES: Final = ("bf16", "f16", "f32")
_ASKED: Final = ("benchmark", "dtype", "launch", "l2", "rounds")  # of a request, and a report
_POISONED: Final = 4  # blocks of a size: an allocator may hold several that are free
_MODULE_NAME: Final = "warmup_bench_model"
_TUNED: Final = {"max_autotune_gemm": True}
# The options of backends that inductor compiles, by benchmark. `custom` has those for kernels that
# move memory: more launch configs, and each of them refined. Inductor's C++ template needs constant
# weights.
_COMPILED: Final[Mapping[str, Mapping[str, Mapping[str, OptionValue]]]] = {
    "layers": {
        "compiled": {},
        "custom": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
    },
    "mm": {
        "max-autotune": {**_TUNED, "max_autotune_gemm_backends": "ATEN,TRITON"},
        "triton-template": {**_TUNED, "max_autotune_gemm_backends": "TRITON"},
    },
    "mm on a CPU": {
        "max-autotune": {**_TUNED, "max_autotune_gemm_backends": "ATEN,CPP", "freezing": True},
        "cpp-template": {**_TUNED, "max_autotune_gemm_backends": "CPP", "freezing": True},
    },
}


def compiled_backends(request: BenchRequest) -> Mapping[str, Mapping[str, OptionValue]]:
    is_mm_on_cpu = request.benchmark == "mm" and request.is_cpu
    return _COMPILED["mm on a CPU" if is_mm_on_cpu else request.benchmark]


@dataclass
class LayerTable:
    """The table of the backend ``table``, given or built by shape, what it lacks, and its hits."""

    request: BenchRequest
    path: Path
    table: Table | None = None
    hits: dict[str, int] = field(default_factory=dict)
    missing: dict[tuple[str, Sizes], str] = field(default_factory=dict)

    def build(self, layer: OpenLayer, shape: Sizes) -> None:
        """Complete the table by the rows of *layer* at *shape*; ``missing`` has why that fails."""
        names, request = [f"d{number}" for number in range(len(shape))], self.request
        try:
            with _importable(layer, names, request.device) as target:
                options = BuildOptions(
                    dtype=request.dtype,
                    device=request.device,
                    mode="max-autotune",
                    l2=request.l2.value,
                    pad_weights=False,
                )
                dims = ";".join(map("{}={}".format, names, shape))
                self.table = build_model(target, dims, self.path, options=options).table
        except Exception as error:  # noqa: BLE001  any failure drops this backend only
            self.missing[layer.name, shape] = f"no table: {reason_of(error)}"
            self.table = read(self.path) if self.path.exists() else None

    @contextlib.contextmanager
    def serving(self, layer: OpenLayer, shape: Sizes) -> Iterator[None]:
        """Serve the table to the compiles inside; a cached graph would ask it nothing."""
        missing = self.missing.get((layer.name, shape))
        if missing is not None or self.table is None:
            raise BuildError(missing or "no table was built")
        request = InstallRequest(
            table=self.table,
            on_miss="strict",
            bundle=False,
            freezing=True,  # as the other backends of a CPU; the operands do not change
            device=self.request.device,
            quiet=True,
        )
        with install_as(request) as handle:
            yield
        report = handle.report()
        hits, misses = sum(report.hits.values()), sum(report.misses.values())
        if not hits or misses:
            raise BuildError(f"the table answered {hits} decisions and missed {misses}")
        self.hits[layer.name] = self.hits.get(layer.name, 0) + hits


class _LayerModel(nn.Module):
    """A layer as a model: forward is its ``eager``, and its parameters are those of the layer."""

    def __init__(self, layer: OpenLayer) -> None:
        super().__init__()
        self.layer = layer.definition
        self._eager = layer.backends[EAGER]

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._eager(*inputs)


@contextlib.contextmanager
def _importable(layer: OpenLayer, names: Sequence[str], device: str) -> Iterator[str]:

    def example_inputs(**sizes: int) -> Any:
        with torch.device(device):
            return layer.definition.inputs(tuple(sizes[name] for name in names))

    example_inputs.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    module = types.ModuleType(_MODULE_NAME)
    vars(module).update(model=_LayerModel(layer), example_inputs=example_inputs)
    sys.modules[_MODULE_NAME] = module
    try:
        yield f"{_MODULE_NAME}:model"
    finally:
        del sys.modules[_MODULE_NAME]


@dataclass(frozen=True, slots=True)
class _OperandSet:
    plain: tuple[torch.Tensor, ...]
    operands: tuple[torch.Tensor, ...]  # the same memory; floating ones require gradients
    gradient: torch.Tensor  # of the output

    @classmethod
    def of(cls, values: Sequence[torch.Tensor]) -> _OperandSet:
        operands = tuple(
            value.detach().requires_grad_() if value.is_floating_point() else value
            for value in values[:-1]
        )
        return cls(tuple(values[:-1]), operands, values[-1])

    def run(self, operator: Operator, step: Pass) -> tuple[torch.Tensor, ...]:
        if step is Pass.FORWARD:
            with torch.no_grad():
                return (operator(*self.plain),)
        out = operator(*self.operands)
        leaves = [operand for operand in self.operands if operand.requires_grad]
        return out, *torch.autograd.grad(out, leaves, self.gradient)


class LayerAtShape:
    """A layer at a shape, with operand sets, more than the L2 holds where it is cold.

    The reference is eager on the same values, in float32 for narrower floats, in float64 for
    float32; ``no_backward`` is why it has no gradients. ``moved`` and ``flops`` are by pass.
    Operands are restored before checks and batches, since some backends overwrite them.
    """

    def __init__(self, request: BenchRequest, layer: OpenLayer, shape: Sizes) -> None:
        self._request, self._layer, self._shape = request, layer, shape
        dtype, device = parse_dtype(request.dtype, "--dtype"), torch.device(request.device)
        inputs, wide = layer.inputs(shape, dtype, request.device), wide_dtype(dtype)
        reference = layer.eager_in(wide)
        exact = [value.to(wide) if value.is_floating_point() else value for value in inputs]
        with full_precision(), torch.no_grad():
            output = reference(*exact)
        self._values = [*inputs, _gradient(output.shape, dtype, device)]
        self._expected: tuple[torch.Tensor, ...] = (output,)
        self.no_backward = ""
        if Pass.BOTH in request.steps:
            exact_set = _OperandSet.of([*exact, self._values[-1].to(wide)])
            try:
                with full_precision():
                    self._expected = exact_set.run(reference, Pass.BOTH)
            except Exception as error:  # noqa: BLE001  such as an output without gradients
                self.no_backward = f"eager has no gradients: {reason_of(error)}"
        room = operand_room(device) // sum(value.nbytes for value in self._values)
        count = 1 if request.l2 is L2.WARM else max(1, min(MAX_OPERAND_SETS, room))
        self.sets = [_OperandSet.of([each.clone() for each in self._values]) for _ in range(count)]
        item, out = dtype.itemsize, self._values[-1].nbytes
        floating = sum(value.nbytes for value in inputs if value.is_floating_point())
        read = sum(value.nbytes for value in (*inputs, *layer.weights))
        moved = layer.count("bytes", shape, item) or read + out
        self.moved = {Pass.FORWARD: moved, Pass.BOTH: moved + out + read + floating}
        self.flops = {Pass.FORWARD: layer.count("flops", shape), Pass.BOTH: None}

    def restore(self) -> None:
        with torch.no_grad():
            for each in self.sets:
                for tensor, value in zip((*each.plain, each.gradient), self._values, strict=True):
                    tensor.copy_(value)

    def check(self, operator: Operator, step: Pass, tolerance: float) -> float:
        """Return the largest relative L2 distance of the results from the reference."""
        # Freed blocks of NaN are what the allocator gives: an unwritten output is not the last one.
        expected = self._expected if step is Pass.BOTH else self._expected[:1]
        dtype, copies = self._values[-1].dtype, range(_POISONED)
        blocks = [torch.full_like(e, math.nan, dtype=dtype) for e in expected for _ in copies]
        del blocks
        self.restore()
        results = self.sets[0].run(operator, step)
        names = ["output", *(f"gradient {number}" for number in range(1, len(results)))]
        return max(map(_distance, names, results, expected, [tolerance] * len(names)))

    def cells(self, step: Pass, table: LayerTable, backends: Sequence[str]) -> list[Cell]:
        known = {TABLE, *compiled_backends(self._request), *self._layer.backends}
        cells: dict[str, Cell] = {}
        batches: dict[str, Batch] = {}
        for name in backends:
            if name not in known or (step is Pass.BOTH and name == TABLE):
                continue
            cells[name] = cell = Cell(
                layer=self._layer.name,
                shape=spell_shape(self._shape),
                step=step,
                backend=name,
                moved=self.moved[step],
                flops=self.flops[step],
            )
            error = None
            try:
                operator = self._operator(name, step, table)
                error = self.check(operator, step, TOLERANCE[self._request.dtype])
                batches[name] = self.batch_of(operator, step)
                cells[name] = replace(cell, error=error)
            except Exception as failure:  # noqa: BLE001  any failure drops this backend only
                is_wrong = isinstance(failure, OutputMismatchError)
                reason = reason_of(failure)
                cells[name] = replace(cell, error=error, reason=reason, is_wrong=is_wrong)
        times: Mapping[str, Samples] | None = None
        while times is None:
            timed: list[str] = []
            try:
                times = run_rounds(batches, self._request.rounds, timed.append)
            except Exception as failure:  # noqa: BLE001  such as a recompile: it has no times
                name, reason = timed[-1], f"while it was timed: {reason_of(failure)}"
                cells[name] = replace(cells[name], reason=reason)
                del batches[name]
        return [replace(cell, samples=times.get(name)) for name, cell in cells.items()]

    def _operator(self, backend: str, step: Pass, table: LayerTable) -> Operator:
        options = dict(compiled_backends(self._request).get(backend, {}))
        if backend == TABLE:
            context = table.serving(self._layer, self._shape)
        elif backend in compiled_backends(self._request):
            context = compiling_with(options)
        else:
            return self._layer.backends[backend]
        own = with_own_code(self._layer.backends[EAGER], backend)
        # As options of the compile too: a backward is compiled in a thread of its own.
        given: Any = options or None
        operator = torch.compile(own, dynamic=False, options=given)
        with context:
            self.sets[0].run(operator, step)
        return operator

    def batch_of(self, operator: Operator, step: Pass) -> Batch:
        sets, launch = self.sets, self._request.launch

        def call(number: int) -> object:
            return sets[number % len(sets)].run(operator, step)

        try:
            if launch is Launch.CUDAGRAPH:
                _refuse_waiting(call)
            device = torch.device(self._request.device)
            batch = batch_of(call, device, self._request.l2, len(sets), launch)
        except Exception as error:
            if launch is not Launch.CUDAGRAPH:
                raise
            # Ending the broken capture raises too; the first error is that error's context.
            raise BuildError(
                f"cannot be captured into a CUDA graph: {reason_of(error.__context__ or error)}"
            ) from error
        restored = _Restored(batch, self.restore)
        restored.time()
        return restored


def _gradient(size: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not size:
        return torch.ones((), dtype=dtype, device=device)
    # Other values than those of the inputs: a norm's gradient along its own input cancels.
    source = torch.Generator(device).manual_seed(SEED + 1)
    return torch.randn(size, generator=source, device=device).to(dtype)


def _distance(name: str, result: torch.Tensor, expected: torch.Tensor, limit: float) -> float:
    if result.shape != expected.shape:
        raise OutputMismatchError(
            f"its {name} has sizes {tuple(result.shape)}, not {tuple(expected.shape)}"
        )
    norm, result = torch.linalg.vector_norm, result.detach()
    apart = norm(result.to(expected.dtype) - expected.detach(), dtype=torch.float64)
    error = float(apart / norm(expected.detach(), dtype=torch.float64))
    if not error <= limit:
        raise OutputMismatchError(
            f"its {name} is wrong: relative L2 error {error:.1e}, allowed are {limit:.0e}"
        )
    if name == "output":  # a small wrong part hardly shows in a norm
        _, rejection, message = judge_output(result, expected.detach(), limit)
        if rejection is not None:
            raise OutputMismatchError(f"its {name} is {rejection}: {message}")
    return error


class _Restored:
    """A `Batch` that restores its operands before it is timed; a recompile then is an error."""

    def __init__(self, batch: Batch, restore: Callable[[], None]) -> None:
        self.calls, self._batch, self._restore = batch.calls, batch, restore

    def time(self) -> float:
        self._restore()
        with torch.compiler.set_stance("fail_on_recompile"):
            return self._batch.time()


def _refuse_waiting(call: Callable[[int], object]) -> None:
    """Raise where *call* synchronizes: in a capture that would leave torch's generator unusable."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(0)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _cells_at(
    request: BenchRequest, layer: OpenLayer, shape: Sizes, table: LayerTable, names: Sequence[str]
) -> list[Cell]:
    cells: list[Cell] = []
    reason = ""
    try:
        place = LayerAtShape(request, layer, shape)
    except Exception as error:  # noqa: BLE001  out of memory, or an error of the user's layer
        reason = f"no operands: {reason_of(error)}"
    with empty_caches(), _on(torch.device(request.device)):  # no shape meets another's code
        for step in request.steps:
            if why := reason or (place.no_backward if step is Pass.BOTH else ""):
                text = spell_shape(shape)
                cells += [
                    Cell(layer=layer.name, shape=text, step=step, backend=name, reason=why)
                    for name in names
                ]
            else:
                cells += place.cells(step, table, names)
    torch.cuda.empty_cache()  # nothing where CUDA is not in use
    return cells


def bench(
    request: BenchRequest,
    *,
    say: Callable[[str], None] = lambda _line: None,
    keep: Callable[[BenchReport], None] = lambda _report: None,
) -> BenchReport:
    """Return the times of *request* or why none; *say* gets lines, *keep* the report so far."""
    choose(request.dtype, DTYPES, "--dtype")
    inductor = connect()
    device = resolve_device(request.device)
    check_compiler(device)
    runtime = inductor.runtime(str(device))
    request = replace(request, device=str(device))
    places = list(_places(request))
    layers = list({layer.name: layer for layer, _ in places}.values())
    names = _backends_of(request, layers)
    absent = {name: reason for name in names if (reason := _missing(name, request))}
    if request.is_cpu and TABLE in names and not any(layer.weights for layer in layers):
        absent[TABLE] = "on a CPU a table has rows for constant weights, and the layer has none"
    usable = tuple(name for name in names if name not in absent)
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        if request.out is None:
            folder = stack.enter_context(temporary_folder("warmup-bench-"))
        else:
            make_folder(folder := request.out, "--out")
        # Else torch gives up compiling a function that it compiled too often, and runs it as it is.
        config: Any = torch.compiler.config
        stack.enter_context(config.patch(fail_on_recompile_limit_hit=True))
        served = LayerTable(request, folder / f"bench-{request.benchmark}-table.json")
        served.table = None if request.table is None else read(request.table)
        report = BenchReport(
            **{each: getattr(request, each) for each in _ASKED},
            provenance={
                **{name: getattr(runtime, name) for name in ("torch", "triton", "cuda", "driver")},
                "device": runtime.device.name,
                "warmup": __version__,
                "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
            backends=names,
            missing=absent,
            versions={
                name: version_of(found[0]) or "unknown"
                for name, found in LIBRARIES.items()
                if name in usable
            },
            tolerance=TOLERANCE[request.dtype],
            titles={layer.name: layer.titles for layer in layers},
            peaks=measured_peaks(device),
            cells=(),
        )
        for number, (layer, shape) in enumerate(places, 1):
            say(f"{number}/{len(places)} {layer.name} {spell_shape(shape)}: compiling and timing")
            layer.move_to(request.device, parse_dtype(request.dtype, "--dtype"))
            if TABLE in usable and request.table is None:
                served.build(layer, shape)
            cells += _cells_at(request, layer, shape, served, usable)
            digest = digest_of(served.table) if served.hits and served.table else None
            hits = dict(served.hits)
            report = replace(report, cells=tuple(cells), table=digest, table_hits=hits)
            keep(report)
    return report


def _places(request: BenchRequest) -> Iterator[tuple[OpenLayer, Sizes]]:
    if request.benchmark == "mm":
        shapes = request.shapes
        for shape in Matmul.shapes if shapes is None else parse_shapes(shapes, 3):
            weight = torch.randn(tuple(shape[1:])) if request.is_cpu else None
            yield OpenLayer.of(Matmul(weight), "mm"), shape
        return
    for layer in open_layers(request.layers):
        text, count = request.shapes, len(layer.shapes[0])
        yield from ((layer, each) for each in (parse_shapes(text, count) if text else layer.shapes))


def _backends_of(request: BenchRequest, layers: Sequence[OpenLayer]) -> tuple[str, ...]:
    own = dict.fromkeys(name for layer in layers for name in layer.backends)
    compiled = compiled_backends(request)
    if taken := {TABLE, *compiled} & own.keys():
        raise SettingsError(
            f"the method {min(taken)!r} of a layer has the name of a backend", "name it differently"
        )
    known = (name for name in LIBRARIES if name in own)
    names = tuple(dict.fromkeys((EAGER, *compiled, TABLE, *known, *own)))
    words = names if request.backends is None else map(str.strip, request.backends.split(","))
    chosen = {EAGER, *(choose(word, names, "--backends") for word in words)}
    return tuple(name for name in names if name in chosen)


def _missing(backend: str, request: BenchRequest) -> str | None:
    if backend not in LIBRARIES:
        return None
    if request.is_cpu:
        return "its kernels are for GPUs"
    try:
        library(backend)
    except Exception as error:  # noqa: BLE001  a library may raise any error when imported
        return f"cannot be imported: {reason_of(error)}"
    return None


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make a new stream of *device* current, in which no captured call waits for another stream."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(device).wait_stream(stream)
