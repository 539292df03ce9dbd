"""`compare_layers`: backends of layers, each checked against a reference and timed in turns.

`Layer` is the base class whose methods are backends; eager, inductor's and the table's are those of
every layer. `bench layers` and `bench mm` differ in the layers alone.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.metadata
import inspect
import math
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.bench.cells import (
    EAGER,
    TABLE,
    BenchReport,
    BenchRequest,
    Cell,
    Pass,
    Say,
    provenance,
    reason_of,
)
from warmup.core.errors import BuildError, OutputMismatchError, SettingsError
from warmup.core.files import make_folder
from warmup.core.method import L2, SEED, Launch, OptionValue
from warmup.core.trial import Samples
from warmup.inductor import connect
from warmup.inductor.caches import empty_caches, with_own_code
from warmup.inductor.machine import check_compiler, resolve_device
from warmup.inductor.options import compiling_with
from warmup.measuring.clock import Batch, batch_of, run_rounds
from warmup.measuring.peaks import measured_peaks
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
from warmup.tuning.model import build_model
from warmup.tuning.request import BuildOptions

Operator = Callable[..., Any]
KeepReport = Callable[[BenchReport], None]
Sizes = tuple[int, ...]

DTYPES: Final = ("bf16", "f16", "f32")
# The options of backends that inductor compiles. `custom` has those for kernels that move memory:
# more launch configs, and each of them refined.
COMPILED: Final[Mapping[str, Mapping[str, OptionValue]]] = {
    "compiled": {},
    "custom": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
}
# Backend -> its distribution, and the module that has its kernels.
LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    "liger": ("liger-kernel", "liger_kernel.transformers.functional"),
    "quack": ("quack-kernels", "quack"),
    "helion": ("helion", "warmup.bench.helion"),
}
FORWARD_ONLY: Final = (TABLE, "helion")  # a table serves without gradients
NO_WEIGHTS: Final = (
    "on a CPU a table has rows for products with constant weights, and the layer has no weights"
)
_POISONED: Final = 4  # blocks of a size: an allocator may hold several that are free
_SHAPE: Final = re.compile(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,4}")
_RESERVED: Final = frozenset(
    ("inputs", "forward", "bytes", "flops", "backward_bytes", "backward_flops")
)
_MODULE_NAME: Final = "warmup_bench_model"


class Layer:
    """A layer under benchmark: every other public method is a backend of its name.

    A layer of the user's file needs ``shapes``, ``inputs`` and ``eager``, and may derive from this
    class, from `nn.Module`, or from neither. A backend has the arguments of ``eager``.

    Optional methods are ``flops(shape)``, the operations of forward, and ``bytes(shape, item)``,
    its least bytes with *item* bytes for an element: without it, each input is read and the output
    written. Backward reads the output's gradient and the inputs, and writes their gradients.
    """

    title: str = ""
    sizes: str = "shape"  # the names of the sizes of a shape, for charts
    shapes: Sequence[Sequence[int]] = ()

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        """Return the inputs at *shape*, made on torch's default device.

        Floating inputs are cast to the dtype of the benchmark and get gradients.
        """
        raise NotImplementedError

    def eager(self, *inputs: Any) -> Any:
        """Return the output of the inputs alone: the reference of all backends."""
        raise NotImplementedError


def library(name: str) -> Any:
    """Return the module that has the kernels of *name*, one of `LIBRARIES`."""
    return importlib.import_module(LIBRARIES[name][1])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLayer:
    """A `Layer` that was read and checked; ``backends`` are its methods by name, ``eager`` first.

    ``titles`` are the title of the layer and the names of its sizes. Methods that torch's own
    classes have too, such as ``train`` and ``half``, are no backends.
    """

    name: str
    titles: tuple[str, str]
    shapes: tuple[Sizes, ...]
    definition: Any
    backends: Mapping[str, Operator]

    @classmethod
    def of(cls, definition: Any, name: str) -> OpenLayer:
        """Return the layer *definition*, an object with the attributes of `Layer`.

        Raises:
            SettingsError: an attribute is missing or has another form.
        """
        shapes = [tuple(shape) for shape in getattr(definition, "shapes", ())]
        if len({len(shape) for shape in shapes}) != 1:
            raise SettingsError(
                f"layer {name} has no shapes, or shapes of several lengths",
                "define shapes = ((4096, 1024), (8192, 4096))",
            )
        for method in (EAGER, "inputs"):
            if not callable(getattr(definition, method, None)):
                raise SettingsError(
                    f"layer {name} has no method {method!r}",
                    "define shapes, inputs(shape) and eager(*inputs), see docs/how-to/bench.md",
                )
        bases = type(definition).__mro__
        of_torch = {n for b in bases if b.__module__.startswith("torch.") for n in vars(b)}
        own = [
            method
            for base in reversed(bases)
            for method, value in vars(base).items()
            if callable(value) and not method.startswith("_")
            if method not in _RESERVED | of_torch
        ]
        return cls(
            name=name,
            titles=(
                str(getattr(definition, "title", "") or name),
                str(getattr(definition, "sizes", "") or "shape"),
            ),
            shapes=parse_shapes(",".join(map(spell_shape, shapes))),
            definition=definition,
            backends={each: getattr(definition, each) for each in dict.fromkeys((EAGER, *own))},
        )

    @property
    def weights(self) -> list[torch.Tensor]:
        """The parameters of the layer, empty where it is no `nn.Module`."""
        module = self.definition
        return list(module.parameters()) if isinstance(module, nn.Module) else []

    def move_to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the parameters to *device*, floating ones in *dtype*; they take no gradients."""
        if isinstance(self.definition, nn.Module):
            self.definition.to(device=device, dtype=dtype)
            self.definition.eval().requires_grad_(requires_grad=False)

    def eager_in(self, dtype: torch.dtype) -> Operator:
        """Return eager for inputs of *dtype*; of a module that of a copy, cast with its buffers."""
        if not isinstance(self.definition, nn.Module):
            return self.backends[EAGER]
        exact: Any = copy.deepcopy(self.definition).to(dtype)
        return exact.eager  # type: ignore[no-any-return]

    def count(self, what: str, *arguments: object) -> int | None:
        """Return the layer's own *what*, such as ``flops``, of *arguments*; None without."""
        own = getattr(self.definition, what, None)
        value = None if own is None else own(*arguments)
        if value is None:
            return None
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SettingsError(
                f"{what} of layer {self.name} returned {value!r}", "return a number above 0"
            )
        return round(value)

    def inputs(self, shape: Sizes, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
        """Return the inputs at *shape* on *device*, the same at every call; floats in *dtype*."""
        with torch.random.fork_rng(), device:
            torch.manual_seed(SEED)
            given = self.definition.inputs(shape)
        values = list(given) if isinstance(given, tuple | list) else [given]
        if not all(isinstance(value, torch.Tensor) for value in values) or not any(
            value.is_floating_point() for value in values
        ):
            raise SettingsError(
                f"inputs of layer {self.name} are no tensors, or none of them is floating",
                "return a tuple of tensors",
            )
        return [
            value.detach().to(device, dtype if value.is_floating_point() else value.dtype)
            for value in values
        ]


def spell_shape(shape: Sequence[object]) -> str:
    """Return *shape* as text: ``4096x1024``."""
    return "x".join(map(str, shape))


def parse_shapes(text: str, count: int | None = None) -> tuple[Sizes, ...]:
    """Return the shapes in ``"4096x1024,8192x4096"``, in the order given, each of *count* sizes.

    Raises:
        SettingsError: a shape is malformed, repeated, or of another number of sizes.
    """
    shapes: list[Sizes] = []
    for word in map(str.strip, text.split(",")):
        if not _SHAPE.fullmatch(word):
            raise SettingsError(
                f"--shapes: {word!r} is no shape",
                "write --shapes 4096x1024,8192x4096, each size below ten million",
            )
        shape = tuple(map(int, word.split("x")))
        if count not in (None, len(shape)):
            raise SettingsError(f"--shapes: {word} has not {count} sizes", "give as many")
        if shape in shapes:
            raise SettingsError(f"--shapes: {word} is given twice", "name each shape once")
        shapes.append(shape)
    return tuple(shapes)


def choose(word: str, known: Sequence[str], option: str) -> str:
    """Return *word*.

    Raises:
        SettingsError: it is not in *known*.
    """
    if word not in known:
        raise SettingsError(f"{option} {word!r} is unknown", f"use any of {','.join(known)}")
    return word


@dataclass(frozen=True, slots=True)
class BenchSetup:
    """The setup that all layers of a benchmark share.

    ``compiled`` has the options of the backends that inductor compiles. A GPU launches CUDA graphs
    whose operands are in no cache, as a build's; a CPU launches singly, operands warm.
    """

    benchmark: str
    device: torch.device
    dtype: str
    rounds: int
    compiled: Mapping[str, Mapping[str, OptionValue]] = field(default_factory=lambda: COMPILED)
    steps: tuple[Pass, ...] = tuple(Pass)

    @property
    def launch(self) -> Launch:
        """How timed calls are launched."""
        return Launch.EAGER if self.device.type == "cpu" else Launch.CUDAGRAPH

    @property
    def l2(self) -> L2:
        """What timed calls find in the L2 cache."""
        return L2.WARM if self.device.type == "cpu" else L2.COLD

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of floating operands."""
        return parse_dtype(self.dtype, "--dtype")


def make_setup(benchmark: str, request: BenchRequest) -> BenchSetup:
    """Return the setup of *benchmark* for *request*.

    Raises:
        SettingsError: a word is unknown.
        AdapterError: this torch is not supported.
    """
    choose(request.dtype, DTYPES, "--dtype")
    if request.rounds < 1:
        raise SettingsError(f"--rounds {request.rounds}", "give at least 1")
    connect()
    device = resolve_device(request.device)
    check_compiler(device)
    return BenchSetup(benchmark, device, request.dtype, request.rounds)


@dataclass
class LayerTable:
    """The table that the backend ``table`` serves: as given, or built at ``path`` by shape."""

    setup: BenchSetup
    path: Path
    table: Table | None = None
    hits: dict[str, int] = field(default_factory=dict)
    missing: dict[tuple[str, Sizes], str] = field(default_factory=dict)

    def build(self, layer: OpenLayer, shape: Sizes) -> None:
        """Complete the table by the rows of *layer* at *shape*; ``missing`` has why that fails."""
        names, setup = [f"d{number}" for number in range(len(shape))], self.setup
        try:
            with _importable(layer, names, setup.device) as target:
                options = BuildOptions(
                    dtype=setup.dtype,
                    device=str(setup.device),
                    mode="max-autotune",
                    launch=setup.launch.value,
                    l2=setup.l2.value,
                    pad_weights=False,
                )
                dims = ";".join(map("{}={}".format, names, shape))
                self.table = build_model(target, dims, self.path, options=options).table
        except Exception as error:  # noqa: BLE001  any failure drops this backend only
            self.missing[layer.name, shape] = f"no table: {reason_of(error)}"
            self.table = read(self.path) if self.path.exists() else None

    @contextlib.contextmanager
    def serving(self, layer: OpenLayer, shape: Sizes) -> Iterator[None]:
        """Serve the table to the compiles inside; a cached graph would ask it nothing.

        Raises:
            BuildError: there is no table for the layer at the shape, or it answered nothing.
            Exception: whatever compiling raises; a miss is an error.
        """
        missing = self.missing.get((layer.name, shape))
        if missing is not None or self.table is None:
            raise BuildError(missing or "no table was built")
        request = InstallRequest(
            table=self.table,
            on_miss="strict",
            freezing=True,  # as the other backends of a CPU; the operands do not change
            device=str(self.setup.device),
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
def _importable(layer: OpenLayer, names: Sequence[str], device: torch.device) -> Iterator[str]:
    """Yield a name by which `build` can import *layer* as a model with the dims called *names*."""

    def example_inputs(**sizes: int) -> Any:
        with device:
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
        """Return the output of *operator*, and with backward the gradients of its operands."""
        if step is Pass.FORWARD:
            with torch.no_grad():
                return (operator(*self.plain),)
        out = operator(*self.operands)
        leaves = [operand for operand in self.operands if operand.requires_grad]
        return out, *torch.autograd.grad(out, leaves, self.gradient)


class LayerAtShape:
    """A layer at a shape, with operand sets and the reference of its results.

    With a warm L2 there is one operand set, else enough to outgrow the L2. The reference is eager
    on the same values, in float32 for narrower floats and in float64 for float32; ``no_backward``
    is why it has no gradients. ``moved`` and ``flops`` are by pass. Some backends overwrite their
    operands, which are therefore restored before checks and batches.
    """

    def __init__(self, setup: BenchSetup, layer: OpenLayer, shape: Sizes) -> None:
        self._setup, self._layer, self._shape = setup, layer, shape
        dtype, device = setup.torch_dtype, setup.device
        inputs, wide = layer.inputs(shape, dtype, device), wide_dtype(dtype)
        reference = layer.eager_in(wide)
        exact = [value.to(wide) if value.is_floating_point() else value for value in inputs]
        with full_precision(), torch.no_grad():
            output = reference(*exact)
        self._values = [*inputs, _gradient(output.shape, dtype, device)]
        self._expected: tuple[torch.Tensor, ...] = (output,)
        self.no_backward = ""
        if Pass.BOTH in setup.steps:
            exact_set = _OperandSet.of([*exact, self._values[-1].to(wide)])
            try:
                with full_precision():
                    self._expected = exact_set.run(reference, Pass.BOTH)
            except Exception as error:  # noqa: BLE001  such as an output without gradients
                self.no_backward = f"eager has no gradients: {reason_of(error)}"
        room = operand_room(device) // sum(value.nbytes for value in self._values)
        count = 1 if setup.l2 is L2.WARM else max(1, min(MAX_OPERAND_SETS, room))
        self.sets = [
            _OperandSet.of([value.clone() for value in self._values]) for _ in range(count)
        ]
        item, out = dtype.itemsize, self._values[-1].nbytes
        floating = sum(value.nbytes for value in inputs if value.is_floating_point())
        read = sum(value.nbytes for value in (*inputs, *layer.weights))
        moved = layer.count("bytes", shape, item) or read + out
        self.moved = {Pass.FORWARD: moved, Pass.BOTH: moved + out + read + floating}
        self.flops = {Pass.FORWARD: layer.count("flops", shape), Pass.BOTH: None}

    def restore(self) -> None:
        """Restore the initial values of every set."""
        with torch.no_grad():
            for each in self.sets:
                for tensor, value in zip((*each.plain, each.gradient), self._values, strict=True):
                    tensor.copy_(value)

    def check(self, operator: Operator, step: Pass, tolerance: float) -> float:
        """Return the largest relative L2 distance of the results of *operator* from the reference.

        Freed blocks of NaN are what the allocator gives to the call, so that an output which is
        left unwritten is not the right output of the backend before.

        Raises:
            OutputMismatchError: the output or a gradient is unwritten, of other sizes, or wrong.
            Exception: whatever *operator* raises.
        """
        expected = self._expected if step is Pass.BOTH else self._expected[:1]
        dtype, copies = self._values[-1].dtype, range(_POISONED)
        blocks = [torch.full_like(e, math.nan, dtype=dtype) for e in expected for _ in copies]
        del blocks
        self.restore()
        results = self.sets[0].run(operator, step)
        names = ["output", *(f"gradient {number}" for number in range(1, len(results)))]
        return max(map(_distance, names, results, expected, [tolerance] * len(names)))

    def cells(self, step: Pass, table: LayerTable, backends: Sequence[str]) -> list[Cell]:
        """Return a cell for each of *backends* that has the pass *step*: its times, or why none.

        Backends take turns while they are timed. Any failure costs the backend that failed.
        """
        setup = self._setup
        cells = {
            backend: Cell(
                layer=self._layer.name,
                shape=spell_shape(self._shape),
                step=step,
                backend=backend,
                moved=self.moved[step],
                flops=self.flops[step],
            )
            for backend in backends
            if backend in {TABLE, *setup.compiled, *self._layer.backends}
            if step is Pass.FORWARD or backend not in FORWARD_ONLY
        }
        batches: dict[str, Batch] = {}
        for name, cell in cells.items():
            distance = None
            try:
                operator = self._compiled(name, step, table)
                distance = self.check(operator, step, TOLERANCE[setup.dtype])
                batches[name] = self.batch_of(operator, step)
                cells[name] = replace(cell, error=distance)
            except Exception as error:  # noqa: BLE001  any failure drops this backend only
                is_wrong = isinstance(error, OutputMismatchError)
                reason = reason_of(error)
                cells[name] = replace(cell, error=distance, reason=reason, is_wrong=is_wrong)
        times: Mapping[str, Samples] | None = None
        while times is None:
            timed: list[str] = []
            try:
                times = run_rounds(batches, setup.rounds, timed.append)
            except Exception as error:  # noqa: BLE001  such as a recompile: it has no times
                name, reason = timed[-1], f"while it was timed: {reason_of(error)}"
                cells[name] = replace(cells[name], reason=reason)
                del batches[name]
        return [replace(cell, samples=times.get(name)) for name, cell in cells.items()]

    def _compiled(self, backend: str, step: Pass, table: LayerTable) -> Operator:
        """Return the operator of *backend*, which a first call has compiled.

        Each compiled operator has a code object of its own, and so its own limit of recompiles.
        """
        options: dict[str, Any] = dict(self._setup.compiled.get(backend, {}))
        if backend == TABLE:
            context = table.serving(self._layer, self._shape)
        elif backend in self._setup.compiled:
            context = compiling_with(options)
        else:
            return self._layer.backends[backend]
        own = with_own_code(self._layer.backends[EAGER], backend)
        # As options of the compile too: a backward is compiled in a thread of its own.
        operator = torch.compile(own, dynamic=False, options=options or None)
        with context:
            self.sets[0].run(operator, step)
        return operator

    def batch_of(self, operator: Operator, step: Pass) -> Batch:
        """Return a batch of calls of *operator* that has run once."""
        setup, sets = self._setup, self.sets

        def call(number: int) -> object:
            return sets[number % len(sets)].run(operator, step)

        try:
            if setup.launch is Launch.CUDAGRAPH:
                _refuse_waiting(call)
            batch = batch_of(call, setup.device, setup.launch, setup.l2, len(sets))
        except Exception as error:
            if setup.launch is not Launch.CUDAGRAPH:
                raise
            # Ending the broken capture raises too; the first error is that error's context.
            raise BuildError(
                f"cannot be captured into a CUDA graph: {reason_of(error.__context__ or error)}"
            ) from error
        restored = _Restored(batch, self.restore)
        restored.time()
        return restored


def _gradient(size: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a gradient of the output: one for a single number, else random values."""
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
    """A `Batch` that restores its operands before it is timed.

    A recompile while it is timed is an error: its time would be that of the compiler.
    """

    def __init__(self, batch: Batch, restore: Callable[[], None]) -> None:
        self.calls, self._batch, self._restore = batch.calls, batch, restore

    def time(self) -> float:
        self._restore()
        with torch.compiler.set_stance("fail_on_recompile"):
            return self._batch.time()


def _refuse_waiting(call: Callable[[int], object]) -> None:
    """Make *call* once, outside a capture; a call that synchronizes with the device raises.

    A synchronization would break the capture, and a broken capture leaves torch's random number
    generator unusable.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(0)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def cells_at(
    setup: BenchSetup, layer: OpenLayer, shape: Sizes, table: LayerTable, backends: Sequence[str]
) -> list[Cell]:
    """Return the cells of *layer* at *shape*; operands and compiled code are freed afterwards."""
    cells: list[Cell] = []
    reason = ""
    try:
        place = LayerAtShape(setup, layer, shape)
    except Exception as error:  # noqa: BLE001  out of memory, or an error of the user's layer
        reason = f"no operands: {reason_of(error)}"
    with empty_caches(), _on(setup.device):  # so that no shape meets what another compiled
        for step in setup.steps:
            if why := reason or (place.no_backward if step is Pass.BOTH else ""):
                text = spell_shape(shape)
                cells += [
                    Cell(layer=layer.name, shape=text, step=step, backend=name, reason=why)
                    for name in backends
                ]
            else:
                cells += place.cells(step, table, backends)
    torch.cuda.empty_cache()  # nothing where CUDA is not in use
    return cells


def compare_layers(
    request: BenchRequest,
    setup: BenchSetup,
    places: Sequence[tuple[OpenLayer, Sizes]],
    *,
    say: Say,
    keep: KeepReport,
) -> BenchReport:
    """Return the times of the layers and shapes of *places* on the backends of *request*.

    Eager is always among them. *say* gets lines of progress, and *keep* the report so far after
    each shape.

    Raises:
        SettingsError: a backend is unknown, or ``out`` cannot be written.
        TableError: the table cannot be read.
    """
    layers = list({layer.name: layer for layer, _ in places}.values())
    names = _backends_of(setup, layers, request.backends)
    absent = {name: reason for name in names if (reason := _missing(name, setup.device))}
    if setup.device.type == "cpu" and TABLE in names and not any(one.weights for one in layers):
        absent[TABLE] = NO_WEIGHTS
    usable = tuple(name for name in names if name not in absent)
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        if request.out is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="warmup-bench-", ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(temporary))
        else:
            make_folder(folder := request.out, "--out")
        # Else torch gives up compiling a function that it compiled too often, and runs it as it is.
        limit = "fail_on_recompile_limit_hit"
        stack.callback(setattr, torch.compiler.config, limit, getattr(torch.compiler.config, limit))
        torch.compiler.config.fail_on_recompile_limit_hit = True
        served = LayerTable(setup, folder / f"bench-{setup.benchmark}-table.json")
        served.table = None if request.table is None else read(request.table)
        peaks, where = measured_peaks(setup.device), provenance(setup.device)
        versions = {name: _version(name) for name in LIBRARIES if name in usable}

        def report() -> BenchReport:
            return BenchReport(
                benchmark=setup.benchmark,
                provenance=where,
                dtype=setup.dtype,
                launch=setup.launch,
                l2=setup.l2,
                rounds=setup.rounds,
                backends=names,
                missing=absent,
                versions=versions,
                tolerance=TOLERANCE[setup.dtype],
                titles={layer.name: layer.titles for layer in layers},
                peaks=peaks,
                cells=tuple(cells),
                table=digest_of(served.table) if served.hits and served.table else None,
                hits=dict(served.hits),
            )

        for number, (layer, shape) in enumerate(places, 1):
            say(f"{number}/{len(places)} {layer.name} {spell_shape(shape)}: compiling and timing")
            layer.move_to(setup.device, setup.torch_dtype)
            if TABLE in usable and request.table is None:
                served.build(layer, shape)
            cells += cells_at(setup, layer, shape, served, usable)
            keep(report())
        return report()


def _backends_of(
    setup: BenchSetup, layers: Sequence[OpenLayer], text: str | None
) -> tuple[str, ...]:
    """Return the backends in *text*, all where that is None, in the order of the report."""
    own = dict.fromkeys(name for layer in layers for name in layer.backends)
    if taken := {TABLE, *setup.compiled} & own.keys():
        raise SettingsError(
            f"the method {min(taken)!r} of a layer has the name of a backend", "name it differently"
        )
    known = (name for name in LIBRARIES if name in own)
    names = tuple(dict.fromkeys((EAGER, *setup.compiled, TABLE, *known, *own)))
    words = names if text is None else [word.strip() for word in text.split(",")]
    chosen = {EAGER, *(choose(word, names, "--backends") for word in words)}
    return tuple(name for name in names if name in chosen)


def _missing(backend: str, device: torch.device) -> str | None:
    """Return why *backend* cannot be used on *device*, None when it can."""
    if backend not in LIBRARIES:
        return None
    if device.type == "cpu":
        return "its kernels are for GPUs"
    try:
        library(backend)
    except Exception as error:  # noqa: BLE001  a library may raise any error when imported
        return f"cannot be imported: {reason_of(error)}"
    return None


def _version(backend: str) -> str:
    try:
        return importlib.metadata.version(LIBRARIES[backend][0])
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make *device* the current device, and a new stream of it the current stream.

    Autograd runs backward on the stream of forward. With warm-up and capture on this same stream,
    no captured call waits for another stream.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(device).wait_stream(stream)
