"""`explain`: the ranges of sizes for which torch.compile makes an artifact each, and why.

Nothing is tuned or timed, and no kernel is built: the model is compiled with dynamic shapes up to
the code of its kernels, and runs uncompiled. Inductor's questions on the way are answered as by a
server with an empty table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.buckets.bucket import Bucket, parse_buckets, parse_inputs
from warmup.buckets.histogram import check_histogram, read_histogram
from warmup.core.assumed_device import ASSUMED_DEVICES, AssumedDevice
from warmup.core.errors import SettingsError
from warmup.core.events import Emitter, Event, EventName
from warmup.core.runtime import Device, Runtime
from warmup.diagnostics.recompiles.known_times import KnownTimes, known_times
from warmup.diagnostics.recompiles.prices import priced
from warmup.diagnostics.recompiles.section import Section
from warmup.prediction.gemm_times import SampledKeys, gemms_among
from warmup.table.lookup import Lookup, OnMiss, Uncovered

if TYPE_CHECKING:
    from warmup.diagnostics.recompiles.explainer import Explainer
    from warmup.inductor.adapter import Inductor

EXPLAINED_MODES: Final = ("default", "max-autotune")
_MIN_SIZES: Final = 2
_COMPILED_OF_HISTOGRAM: Final = 3  # the sizes requested most often stand for the first requests


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a model: a section for each dim that has several sizes.

    ``assumptions`` are the model and inputs that nobody named, with how to name others.
    ``assumed`` are the facts of the device where it is assumed, else None. ``caveats`` are what
    else limits the answer.
    """

    model: str
    device: str
    torch: str
    mode: str
    recompile_limit: int
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...] = ()
    assumed: AssumedDevice | None = None
    caveats: tuple[str, ...] = ()


def explain(
    model: str,
    *,
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    mode: str = "default",
    grad: bool | None = None,
    largest: int | None = None,
    max_compiles: int = 16,
    assume: str | None = None,
    histogram: str | Path | Mapping[int, int] | None = None,
    table: str | Path | None = None,
    device_model: str | Path | None = None,
) -> Explanation:
    """Return at which sizes of each dim torch.compile makes another artifact of *model*.

    Each dim with two sizes or more is marked dynamic in turn, with the other dims held at their
    first size. Its sizes are compiled in the order given, then the sizes up to *largest* (by
    default the largest of them) that no artifact serves, at most *max_compiles* in all. *grad* says
    whether gradients are on; None explains both. With gradients the model is in training mode.

    *assume* names a GPU (`ASSUMED_DEVICES`) to compile for, which this machine need not have; the
    model itself runs on the CPU. *histogram* has the sizes of the dim that are served, with their
    counts: without *seqlens* and *dims* the sizes of ``seqlen`` that were requested most often are
    compiled first. *table* and *device_model* are of the device that is explained: with either,
    each span has the prices of the sizes that it serves, and a section with gradients the tunings
    that only they need.

    Raises:
        SettingsError: an argument cannot be used, or no input depends on the dim.
        ModelError: the model or its inputs cannot be loaded, run or compiled.
        TableError: *table* cannot be read.
        DeviceModelError: *device_model* cannot be read, or was trained on too little.
    """
    if mode not in EXPLAINED_MODES:
        raise SettingsError(
            f"--mode {mode!r} cannot be explained", f"use {' or '.join(EXPLAINED_MODES)}"
        )
    assumed = None if assume is None else _assumed(assume, device)
    requests = _requests(histogram)
    if requests and seqlens is None and dims is None:
        seqlens = sorted(requests, key=lambda size: (-requests[size], size))
        seqlens = seqlens[:_COMPILED_OF_HISTOGRAM]
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    varying = _varying_dims(buckets)
    if requests and len(varying) > 1:
        raise SettingsError(
            f"a histogram has the sizes of one dim, and {len(varying)} dims have several sizes",
            "give the other dims one size each",
        )
    from warmup.diagnostics.recompiles.explainer import Explainer
    from warmup.inductor import connect
    from warmup.inductor.guards import default_recompile_limit
    from warmup.inductor.machine import resolve_device
    from warmup.models.inferred_inputs import resolve_inputs
    from warmup.models.loading import load_model, parse_cast

    inductor = connect()
    runtime = inductor.runtime("cpu" if assumed else device)
    if assumed is not None:
        runtime = replace(runtime, device=_device_of(assumed))
    times = known_times(table, device_model, runtime)
    gpu = None
    if assumed is not None:
        from warmup.inductor.assumed_gpu import assumed_gpu

        gpu = assumed_gpu(assumed)
    cast, loaded = parse_cast(dtype), load_model(model)
    resolved = resolve_inputs(loaded, specs, buckets, cast)
    place = resolve_device("cpu" if assumed else device)
    explainer = Explainer(loaded, resolved.specs, place, cast, max_compiles, gpu)
    explainer.model.module.to(device=explainer.device, dtype=explainer.dtype)
    # Only with the switches on are candidates listed, and listing them may add guards.
    options = inductor.quiet_switches() if mode == "max-autotune" else {}
    attachment = inductor.attach(_empty_table(), options, "explain", quiet=True)
    grads = (False, True) if grad is None else (grad,)
    try:
        sections = [
            explainer.run(dim, sizes, held, with_grad=with_grad, largest=largest, requests=requests)
            for dim, sizes, held in varying
            for with_grad in grads
        ]
    finally:
        attachment.detach()
    if times is not None:
        sections = [_with_prices(section, explainer, inductor, times) for section in sections]
    return Explanation(
        model=explainer.model.name,
        device=runtime.device.name,
        torch=runtime.torch,
        mode=mode,
        recompile_limit=default_recompile_limit(),
        sections=tuple(sections),
        assumptions=tuple(map(str, resolved.assumptions)),
        assumed=assumed,
        caveats=tuple(_caveats(runtime, assumed, times)),
    )


def _assumed(name: str, device: str) -> AssumedDevice:
    if device != "auto":
        raise SettingsError(
            f"--assume {name} and --device {device} name two devices", "leave one of them out"
        )
    if name not in ASSUMED_DEVICES:
        raise SettingsError(
            f"--assume {name!r} is no known device", f"use one of {', '.join(ASSUMED_DEVICES)}"
        )
    return ASSUMED_DEVICES[name]


def _device_of(assumed: AssumedDevice) -> Device:
    return Device(
        type="cuda",
        vendor="nvidia",
        name=assumed.name,
        arch=assumed.arch,
        sm_count=assumed.sm_count,
        memory_gib=assumed.memory_gib,
    )


def _requests(histogram: str | Path | Mapping[int, int] | None) -> Mapping[int, int]:
    if histogram is None:
        return {}
    if isinstance(histogram, Mapping):
        return check_histogram(histogram)
    return read_histogram(histogram)


def _empty_table(emitter: Emitter | None = None) -> Lookup:
    return Lookup({}, OnMiss.FALLBACK, emitter or Emitter([]), on_uncovered=Uncovered.FORBID)


def _caveats(
    runtime: Runtime, assumed: AssumedDevice | None, times: KnownTimes | None
) -> list[str]:
    caveats = []
    if runtime.device.type == "cpu":
        caveats.append(
            "this is the answer for a CPU, and a GPU may have other ranges: "
            f"--assume {'|'.join(ASSUMED_DEVICES)} explains a GPU without having it"
        )
    if assumed is not None:
        caveats.append(
            f"{assumed.name} is assumed, not here: torch traced the model on the CPU, and inductor "
            "compiled the graph for the assumed device; what the model or torch decide by the "
            "device before that is the CPU's (such as the kernel of an attention)"
        )
    differs = None if times is None else times.caveat(runtime.torch)
    return [*caveats, differs] if differs else caveats


def _with_prices(
    section: Section, explainer: Explainer, inductor: Inductor, times: KnownTimes
) -> Section:
    """Return *section* with the prices of its sizes, and the tunings that only gradients need."""

    def keys(size: int, *, with_grad: bool) -> tuple[str, ...]:
        asked: list[str] = []

        def note(event: Event) -> None:
            if event.name is EventName.MISSED:
                asked.append(str(event.fields["key"]))

        lookup = _empty_table(Emitter([note]))
        attachment = inductor.attach(lookup, inductor.quiet_switches(), "explain", quiet=True)
        try:
            explainer.compile_static(section.dim, size, section.held, with_grad=with_grad)
        finally:
            attachment.detach()
        return tuple(asked)

    low, high = min(section.sizes), max(section.sizes)
    sampled = {size: keys(size, with_grad=section.grad) for size in (low, high)}
    gemms = gemms_among(sampled[low]), gemms_among(sampled[high])
    section = priced(section, SampledKeys((low, high), gemms), times.gemms)
    if not section.grad:
        return section
    without = Counter(keys(low, with_grad=False))
    return replace(section, for_gradients=tuple((Counter(sampled[low]) - without).elements()))


_VaryingDim = tuple[str, tuple[int, ...], tuple[tuple[str, int], ...]]


def _varying_dims(buckets: Sequence[Bucket]) -> list[_VaryingDim]:
    """Return each dim with several sizes: its name, its sizes as given, the other dims as held."""
    first = buckets[0].sizes
    varying = []
    for name, _ in first:
        sizes = tuple(dict.fromkeys(bucket.size_of(name) or 0 for bucket in buckets))
        if len(sizes) >= _MIN_SIZES:
            varying.append((name, sizes, tuple(dim for dim in first if dim[0] != name)))
    if not varying:
        raise SettingsError(
            f"every dim has one size ({buckets[0]})",
            "give two sizes or more, such as --seqlens 16,2048; ranges between them are found",
        )
    return varying
