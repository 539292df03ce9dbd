"""`VariantProcess`: the child process of a variant, which answers the requests of `compare`.

Run as ``python -m warmup.bench.variant_process FD``. The process computes the first outputs of
every bucket, then checks and times them on request. `warmup.bench.compare` sends the requests.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import itertools
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from warmup.bench.compare import Answer, How, Start, serve
from warmup.core.buckets import Bucket, parse_inputs
from warmup.core.errors import ModelError
from warmup.core.phases import DECIMALS, Phase, PhaseClock, added, document_of
from warmup.core.roofline import dtype_name
from warmup.core.rows import L2, Launch
from warmup.measuring.clock import Batch, batch_of, wall_us
from warmup.models.inputs import naming_dtypes, place_model
from warmup.models.loading import Inputs
from warmup.models.outputs import dense_parts, is_plain, tensors_of, worst_error
from warmup.table.schema import TOLERANCE

if TYPE_CHECKING:
    from warmup.serving.handle import Handle

CompiledCall = Callable[..., Any]

_LIMIT_PER_BUCKET: Final = 8  # torch's default limit of graphs of a function
_KIB: Final = 1024
_OUTPUTS: Final = "output-{}.pt"
_LONELY: Final = "no room for copies of its weights and inputs: each call is timed alone"
_MOST_COPIES: Final = 64
_MAX_COPIES_BYTES: Final = 2**34  # far larger than the L2 cache of any device
_CHUNK_ELEMENTS: Final = 1 << 24  # elements hashed at once: 128 MiB as integers
_MODULUS: Final = 1 << 64
_INTEGER_OF_SIZE: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, how it is compiled, its buckets, and when its process was ``spawned``, as JSON."""

    model: str
    how: str
    table: str | None
    buckets: Sequence[Sequence[tuple[str, int]]]
    inputs: Sequence[str]
    device: str
    dtype: str | None
    spawned: float
    freezing: bool | None


class VariantProcess:
    """A compiled model and its inputs by bucket. Each public method answers a request."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()  # never closed: the process ends with it open
        self._device, self._module = torch.device("cpu"), nn.Module()
        self._served: CompiledCall = self._module
        self._inputs: list[Inputs] = []
        self._batches: list[Batch] = []
        self._benchmarks: Counter[str] = Counter()
        self._handle: Handle | None = None

    def start(self, **case: Any) -> Answer:
        given = Case(**case)
        clock = PhaseClock(since=given.spawned)
        clock.charge(Phase.IMPORT)
        self._device = torch.device(given.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        with clock.phase(Phase.LOAD):
            buckets = [Bucket(tuple((name, size) for name, size in own)) for own in given.buckets]
            specs = parse_inputs(given.inputs)
            placed = place_model(given.model, specs, buckets, self._device, given.dtype)
            self._module, self._inputs = placed.module, [placed.inputs(each) for each in buckets]
        self._compile(given, clock)
        before = clock.take()
        for inputs in self._inputs:
            with clock.phase(Phase.FIRST_CALLS), naming_dtypes(self._module, inputs):
                self._call(inputs)
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
        calls, report = clock.take(), None if self._handle is None else self._handle.report()
        start = Start(
            process_seconds=round(sum(before.values()) + sum(calls.values()), DECIMALS),
            call_seconds=round(sum(calls.values()), DECIMALS),
            phases=document_of(added((before, calls))),
            benchmarks=(self._benchmarks if report is None else Counter(report.uncovered)).total(),
            hits=None if report is None else sum(report.hits.values()),
            misses=None if report is None else sum(report.misses.values()),
            miss_reasons={} if report is None else dict(report.miss_reasons),
            peak_bytes=int(torch.cuda.max_memory_allocated(self._device))
            if self._device.type == "cuda"
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
        )
        prepared = None if self._handle is None else self._handle.prepared
        remarks = [] if prepared is None else str(prepared).splitlines()[:1]
        assumptions = list(map(str, placed.resolved.assumptions))
        about = {"dtype": self._dtype(), "assumptions": assumptions}
        return {"start": start, "remarks": remarks, **about}

    def agree(self, folder: str, keep: bool) -> Answer:  # noqa: FBT001  a field of the request
        """Answer with the error against the outputs in *folder* and its limit, by bucket."""
        errors = []
        for number in range(len(self._inputs)):
            path = Path(folder) / _OUTPUTS.format(number)
            if keep:
                torch.save(self._outputs(number), path)
            expected = torch.load(path, map_location=self._device, weights_only=True)
            outputs = self._outputs(number)
            shapes = [[tuple(tensor.shape) for tensor in each] for each in (outputs, expected)]
            if shapes[0] != shapes[1]:
                raise ModelError(f"its output has shapes {shapes[0]}, eager's has {shapes[1]}")
            errors.append(worst_error(expected, outputs, TOLERANCE))
        weights = digest_of(dict(self._module.named_parameters()))
        inputs = digest_of([(given.args, given.kwargs) for given in self._inputs])
        torch.cuda.empty_cache()  # nothing where CUDA is not in use
        return {"errors": errors, "weights": weights, "inputs": inputs}

    def release(self) -> Answer:
        """Free what an earlier `prepare` made; answer with the room for copies of all variants."""
        self._batches.clear()
        gc.collect()
        torch.cuda.empty_cache()  # nothing where CUDA is not in use
        if self._device.type == "cpu":  # its kernels may use packed weights, not these
            return {"room": 0}
        return {"room": torch.cuda.mem_get_info(self._device)[0] // 2}

    def prepare(self, launch: str, l2: str, room: int) -> Answer:
        is_cold = l2 == L2.COLD
        copies = copy_operands(self._module, self._inputs, room) if is_cold else None
        for number in range(len(self._inputs)):
            call = self._numbered(number, copies)
            sets = 1 if copies is None else len(copies)
            self._batches.append(batch_of(call, self._device, L2(l2), sets, Launch(launch)))
        lonely = copies is not None and len(copies) == 1 and self._device.type != "cpu"
        return {"remarks": [_LONELY] if lonely else []}

    def time(self, bucket: int) -> Answer:
        """Answer with the device time of a call, and the host's time for another one."""
        batch = self._batches[bucket]
        batch.time()  # not reported: the device has just worked for another process
        device_us = batch.time()
        enqueued, ready = wall_us(self._numbered(bucket), self._device, 1)
        times = {"device_us": device_us, "host_us": enqueued, "wall_us": ready}
        return {name: round(time_us, 3) for name, time_us in times.items()}

    def _dtype(self) -> str:
        inputs = tensors_of([(given.args, given.kwargs) for given in self._inputs])
        tensors = itertools.chain(self._module.parameters(), inputs)
        floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        name = dtype_name(next(floats, torch.float32))
        is_tf32 = self._device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        return "tf32" if name == "f32" and is_tf32 else name

    def _compile(self, case: Case, clock: PhaseClock) -> None:
        how = How(case.how)
        self._served = self._module
        if how is How.EAGER:
            return
        with clock.phase(Phase.IMPORT):
            from warmup.inductor import connect
            from warmup.inductor.adapter import compile_model

            inductor = connect()
        self._open.enter_context(inductor.time_phases(clock))
        if how.is_served:
            with clock.phase(Phase.INSTALL):
                from warmup.serving.install import InstallRequest, install_as

                request = InstallRequest(
                    table=case.table,
                    device=case.device,
                    model=self._module if how is How.TABLE_PADDED else None,
                    bundle=False,  # the lookups of its graphs are not counted
                    freezing=case.freezing,
                    allow_mismatch=True,  # the report says which fields mismatch, counts the misses
                    quiet=True,
                )
                self._handle = self._open.enter_context(install_as(request))
        else:
            self._benchmarks = self._open.enter_context(inductor.count_benchmarks())
        # Each bucket is a graph; past the limit torch would run the model uncompiled and only warn.
        torch.compiler.config.recompile_limit = _LIMIT_PER_BUCKET * len(self._inputs)
        torch.compiler.config.fail_on_recompile_limit_hit = True
        mode = "max-autotune-no-cudagraphs" if how is How.MAX_AUTOTUNE else None
        self._served = compile_model(self._module, mode)

    def _call(self, inputs: Inputs) -> Any:
        return self._served(*inputs.args, **inputs.kwargs)

    def _numbered(self, bucket: int, copies: Copies | None = None) -> Callable[[int], object]:
        own = self._inputs[bucket]
        return lambda number: self._call(copies.take(bucket, number) if copies else own)

    def _outputs(self, number: int) -> list[torch.Tensor]:
        outputs = tensors_of(self._call(self._inputs[number]))
        return [part for tensor in outputs for part in dense_parts(tensor)]


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of weights and inputs, used in turn, so that no call finds them in a cache.

    The compiled graph takes both as arguments, so it is compiled once for all copies. ``contents``
    are those of the ``weights`` in each copy, ``inputs`` are by bucket and copy; copy 0 is the
    original, and numbers of copies go round.
    """

    weights: tuple[torch.Tensor, ...]
    contents: tuple[tuple[torch.Tensor, ...], ...]
    inputs: tuple[tuple[Inputs, ...], ...]

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, bucket: int, number: int) -> Inputs:
        """Give the model the weights of copy *number*; return the inputs of that copy."""
        turn = number % len(self)
        for weight, content in zip(self.weights, self.contents[turn], strict=True):
            weight.data = content
        return self.inputs[bucket][turn]


def copy_operands(module: nn.Module, inputs: Sequence[Inputs], room: int) -> Copies:
    """Return *module*'s parameters and buffers and *inputs*, each with up to 63 copies."""
    # The copies take at most *room* bytes and at most 16 GiB; all buckets have equally many.
    # Weights and inputs that are not dense, or of a subclass, are not copied.
    unique = dict.fromkeys((*module.parameters(), *module.buffers()))
    weights = tuple(weight for weight in unique if is_plain(weight.data))
    contents = tuple(weight.data for weight in weights)
    arguments = filter(is_plain, tensors_of([(given.args, given.kwargs) for given in inputs]))
    size = sum(tensor.untyped_storage().nbytes() for tensor in (*contents, *arguments))
    count = min(_MOST_COPIES - 1, min(_MAX_COPIES_BYTES, room) // size) if size else 0
    return Copies(
        weights,
        (contents, *(tuple(map(copy.deepcopy, contents)) for _ in range(count))),
        tuple((given, *(_copied(given) for _ in range(count))) for given in inputs),
    )


def _copied(inputs: Inputs) -> Inputs:
    copies: dict[int, torch.Tensor] = {}

    def copied(leaf: torch.Tensor) -> torch.Tensor:
        if is_plain(leaf) and id(leaf) not in copies:
            copies[id(leaf)] = copy.deepcopy(leaf.detach()).requires_grad_(leaf.requires_grad)
        return copies.get(id(leaf), leaf)

    return inputs.changed(copied)  # with the strides of padding: storages are copied whole


def digest_of(tree: object) -> str:
    """Return a digest of *tree*, made on its device: sums of its bits, weighted by position."""
    hashed = hashlib.sha256()
    for tensor in (part for each in tensors_of(tree) for part in dense_parts(each)):
        whole = tensor.detach().contiguous()
        real = torch.view_as_real(whole) if whole.is_complex() else whole
        bits = real.view(_INTEGER_OF_SIZE[real.element_size()]).reshape(-1)
        total = 0
        for chunk in torch.split(bits, _CHUNK_ELEMENTS):
            positions = torch.arange(1, chunk.numel() + 1, device=chunk.device)
            total = (3 * total + int((chunk.long() * positions).sum().item())) % _MODULUS
        hashed.update(f"{tuple(tensor.shape)} {tensor.dtype} {total}\n".encode())
    return hashed.hexdigest()


if __name__ == "__main__":
    process = VariantProcess()
    requests = (process.start, process.agree, process.release, process.prepare, process.time)
    with torch.no_grad():
        serve({handler.__name__: handler for handler in requests})
