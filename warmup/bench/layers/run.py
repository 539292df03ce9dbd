"""`bench_layers`: layers timed on eager PyTorch, inductor and kernel libraries, side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from warmup.bench.layers.backends import CUSTOM_OPTIONS, EAGER, LAYER_BACKENDS, missing, versions
from warmup.bench.layers.layers import LAYERS, parse_rows
from warmup.bench.layers.report import LayerCell, LayersReport, Pass
from warmup.bench.layers.timing import LayerSetup, cells_at
from warmup.bench.provenance import provenance
from warmup.bench.reasons import Say
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch
from warmup.inductor import connect
from warmup.inductor.machine import check_compiler, resolve_device
from warmup.measuring.device_peaks import measured_peaks

LAYER_ROUNDS: Final = 30
LAYER_DTYPES: Final = ("bf16", "f16", "f32")

KeepLayers = Callable[[LayersReport], None]


def bench_layers(
    *,
    layers: str | None = None,
    backends: str | None = None,
    shapes: str | None = None,
    dtype: str = "bf16",
    rounds: int = LAYER_ROUNDS,
    launch: str = Launch.CUDAGRAPH,
    l2: str = L2.COLD,
    backward: bool = True,
    device: str = "auto",
    say: Say = lambda _line: None,
    keep: KeepLayers = lambda _report: None,
) -> LayersReport:
    """Return the times of *layers* on *backends* over *shapes*, or the reasons for missing times.

    Arguments have the text form of the command line; the defaults are all layers, all backends and
    each layer's own shapes. Eager is always among the backends, as the base of the speed-ups. With
    *backward*, forward and backward together are timed too, as one call. *say* gets lines of
    progress, and *keep* the report so far after each shape. On a CPU calls are launched singly,
    without CUDA graphs.

    Raises:
        SettingsError: an argument is not valid.
        AdapterError: this torch is not supported.
    """
    wanted = [LAYERS[name] for name in _chosen(layers, tuple(LAYERS), "--layers")]
    names = _chosen(backends, LAYER_BACKENDS, "--backends")
    names = names if EAGER in names else (EAGER, *names)
    rows = None if shapes is None else parse_rows(shapes)
    _choose(dtype, LAYER_DTYPES, "--dtype")
    if rounds < 1:
        raise SettingsError(f"--rounds {rounds}", "give at least 1")
    connect()
    place = resolve_device(device)
    check_compiler(place)
    cache = L2(_choose(l2, tuple(L2), "--l2"))
    given = Launch(_choose(launch, tuple(Launch), "--launch"))
    setup = LayerSetup(
        device=place,
        dtype=dtype,
        launch=Launch.EAGER if place.type == "cpu" else given,
        l2=L2.WARM if place.type == "cpu" else cache,
        rounds=rounds,
        steps=tuple(Pass) if backward else (Pass.FORWARD,),
    )
    absent = {name: reason for name in names if (reason := missing(name)) is not None}
    usable = tuple(name for name in names if name not in absent)
    peaks = measured_peaks(place)
    cells: list[LayerCell] = []
    places = [(layer, shape) for layer in wanted for shape in rows or layer.shapes]

    def report() -> LayersReport:
        return LayersReport(
            provenance=provenance(place),
            device_type=place.type,
            dtype=dtype,
            launch=setup.launch,
            l2=setup.l2,
            rounds=rounds,
            backends=names,
            missing=absent,
            versions={name: text for name, text in versions().items() if name in usable},
            options=CUSTOM_OPTIONS,
            peaks=peaks,
            cells=tuple(cells),
        )

    with _on(place):
        for number, (layer, shape) in enumerate(places):
            say(f"{number + 1}/{len(places)} {layer.name} {shape}: compiling and timing")
            cells += cells_at(layer, shape, setup, usable)
            keep(report())
    return report()


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
