"""`bench_layers`: layers timed on eager PyTorch, inductor and kernel libraries, side by side."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from warmup.bench.files import result_folder
from warmup.bench.layers.backends import TABLE, missing, names_of, parse_customs, versions
from warmup.bench.layers.built_in import LAYERS
from warmup.bench.layers.layer import (
    EAGER,
    LayerShape,
    OpenLayer,
    open_layer,
    parse_layer_shapes,
)
from warmup.bench.layers.report import LayerCell, LayersReport, Pass
from warmup.bench.layers.table_column import NO_WEIGHTS, LayerTable
from warmup.bench.layers.timing import LayerSetup, cells_at
from warmup.bench.provenance import provenance
from warmup.bench.reasons import Say
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch
from warmup.inductor import connect
from warmup.inductor.machine import check_compiler, resolve_device
from warmup.measuring.device_peaks import measured_peaks
from warmup.table.policy import TOLERANCE

LAYER_ROUNDS: Final = 30
LAYER_DTYPES: Final = ("bf16", "f16", "f32")
LAYER_TABLE: Final = "bench-layers-table.json"

KeepLayers = Callable[[LayersReport], None]


def bench_layers(
    *,
    layers: str | None = None,
    own: Sequence[str] = (),
    backends: str | None = None,
    customs: Sequence[str] = (),
    shapes: str | None = None,
    dtype: str = "bf16",
    tolerance: float | None = None,
    rounds: int = LAYER_ROUNDS,
    launch: str = Launch.CUDAGRAPH,
    l2: str = L2.COLD,
    backward: bool = True,
    out: Path | None = None,
    device: str = "auto",
    say: Say = lambda _line: None,
    keep: KeepLayers = lambda _report: None,
) -> LayersReport:
    """Return the times of *layers* on *backends* over *shapes*, or the reasons for missing times.

    Arguments have the text form of the command line; the defaults are all layers, all backends and
    each layer's own shapes. *own* names layers of the user's files, and *layers* then has no
    default. *customs* are sets of inductor's options in place of the backend ``custom``. Eager is
    always among the backends, as the base of the speed-ups. The table of the backend ``table`` is
    built in the folder *out* if given, and one that exists there is completed. With *backward*,
    forward and backward together are timed too, as one call. *say* gets lines of progress, and
    *keep* the report so far after each shape. On a CPU calls are launched singly, without CUDA
    graphs.

    Raises:
        SettingsError: an argument or a layer is not valid.
        TableError: the table in *out* cannot be read.
        AdapterError: this torch is not supported.
    """
    wanted = _layers(layers, own)
    options = parse_customs(customs)
    names = _chosen(backends, names_of(wanted, options), "--backends")
    names = names if EAGER in names else (EAGER, *names)
    rows = None if shapes is None else _shapes(shapes, wanted)
    _choose(dtype, LAYER_DTYPES, "--dtype")
    if rounds < 1:
        raise SettingsError(f"--rounds {rounds}", "give at least 1")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise SettingsError(f"--tolerance {tolerance}", "give a number above 0")
    connect()
    place = resolve_device(device)
    check_compiler(place)
    cache = L2(_choose(l2, tuple(L2), "--l2"))
    given = Launch(_choose(launch, tuple(Launch), "--launch"))
    is_cpu = place.type == "cpu"
    launched, found = (Launch.EAGER, L2.WARM) if is_cpu else (given, cache)
    absent = {name: reason for name in names if (reason := missing(name, place)) is not None}
    if is_cpu and TABLE in names and not any(layer.weights for layer in wanted):
        absent[TABLE] = NO_WEIGHTS
    usable = tuple(name for name in names if name not in absent)
    peaks = measured_peaks(place)
    cells: list[LayerCell] = []
    with result_folder(out) as folder, _limited():
        setup = LayerSetup(
            device=place,
            dtype=dtype,
            launch=launched,
            l2=found,
            rounds=rounds,
            steps=tuple(Pass) if backward else (Pass.FORWARD,),
            tolerance=TOLERANCE[dtype] if tolerance is None else tolerance,
            customs=options,
            table=LayerTable(folder / LAYER_TABLE, place, dtype, launched, found),
        )

        def report() -> LayersReport:
            return LayersReport(
                provenance=provenance(place),
                dtype=dtype,
                launch=setup.launch,
                l2=setup.l2,
                rounds=rounds,
                backends=names,
                missing=absent,
                versions={name: text for name, text in versions().items() if name in usable},
                options={name: options[name] for name in options if name in usable},
                tolerance=setup.tolerance,
                titles={layer.name: (layer.title, layer.columns) for layer in wanted},
                peaks=peaks,
                cells=tuple(cells),
                table=setup.table.digest,
                hits=dict(setup.table.hits),
            )

        for layer in wanted:
            layer.move_to(place, dtype)
            if TABLE in usable:
                say(f"{layer.name}: building its table")
                setup.table.build(layer, rows or layer.shapes)
        places = [(layer, shape) for layer in wanted for shape in rows or layer.shapes]
        with _on(place):
            for number, (layer, shape) in enumerate(places):
                say(f"{number + 1}/{len(places)} {layer.name} {shape}: compiling and timing")
                cells += cells_at(layer, shape, setup, usable)
                keep(report())
        return report()


def _layers(names: str | None, own: Sequence[str]) -> list[OpenLayer]:
    """Return the built-in layers called *names*, all where nothing is named, and those of *own*.

    Raises:
        SettingsError: a name is unknown or given twice, or a layer of *own* cannot be used.
    """
    built_in = () if names is None and own else _chosen(names, tuple(LAYERS), "--layers")
    layers = [OpenLayer.of(LAYERS[name](), name) for name in built_in]
    layers += [open_layer(target) for target in own]
    known = [layer.name for layer in layers]
    if repeated := [name for name in known if known.count(name) > 1]:
        raise SettingsError(
            f"--layer: {repeated[0]} is given twice", "give each layer its own name"
        )
    return layers


def _shapes(text: str, layers: Sequence[OpenLayer]) -> tuple[LayerShape, ...]:
    """Return the shapes in *text*, which have as many sizes as the own shapes of each of *layers*.

    Raises:
        SettingsError: a shape is malformed, repeated, or has another number of sizes.
    """
    shapes = parse_layer_shapes(text)
    for layer in layers:
        own = layer.shapes[0]
        for shape in shapes:
            if len(shape.sizes) != len(own.sizes):
                raise SettingsError(
                    f"--shapes: {shape} has {len(shape.sizes)} sizes, and shapes of {layer.name} "
                    f"have {len(own.sizes)}",
                    f"write --shapes {own}",
                )
    return shapes


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Make torch raise where it would give up compiling a function that it compiled too often."""
    config = torch.compiler.config
    before, config.fail_on_recompile_limit_hit = config.fail_on_recompile_limit_hit, True
    try:
        yield
    finally:
        config.fail_on_recompile_limit_hit = before


def _chosen(text: str | None, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Return the names in *text* in the order of *known*, or all of *known* without *text*.

    Raises:
        SettingsError: a name is unknown.
    """
    if text is None:
        return known
    words = [word.strip() for word in text.split(",")]
    for word in words:
        _choose(word, known, option)
    return tuple(name for name in known if name in words)


def _choose(word: str, known: tuple[str, ...], option: str) -> str:
    if word not in known:
        raise SettingsError(f"{option} {word!r} is unknown", f"use any of {','.join(known)}")
    return word


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
        make: Any = torch.cuda.Stream  # untyped in torch
        stream = make(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(device).wait_stream(stream)
