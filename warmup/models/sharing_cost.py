"""`SharingCost`: the time of shared layers, over the time of the same layers in one graph.

Two consecutive layers are timed as they are served, each by its artifact, and compiled as one
graph. That costs a compile of two layers, where the whole graph would cost one of all. What
differs between the two ways is all that sharing costs: kernels that are not fused across the border
of the layers, and the host's work for one more call. A model of many layers has a border for each
layer, the pair one for two, so the difference counts twice.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from warmup.core.compile_modes import GRAPH_MODES
from warmup.core.method import L2, Launch
from warmup.core.samples import interval_of
from warmup.core.turns import in_turn
from warmup.inductor.layers.compiler import LayerCompiler
from warmup.inductor.layers.opaque_call import LayerProgram, call_layer, name_of, run_program
from warmup.measuring.clock import batch_of, wall_us
from warmup.models.layer_pair import CalledPair

MOST_OVER_WHOLE: Final = 1.01  # a ratio surely above it is slower: the goal of a steady state
_ROUNDS: Final = 9
_HOST_CALLS: Final = 32  # with fewer, noise of the host hides 20 %


class PairTime(NamedTuple):
    """Microseconds of a pair of layers: of the device, and of the host to enqueue the calls."""

    device: float
    host: float


@dataclass(frozen=True, slots=True)
class SharingCost:
    """The time of a model's shared layers over their time in one graph, in each round.

    ``pair`` has the names of the two layers that were timed.
    """

    pair: str
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.ratios)

    @property
    def is_slower(self) -> bool:
        """Whether sharing is slower by more than noise, and by more than 1 %."""
        return interval_of(self.ratios)[0] > MOST_OVER_WHOLE

    def __str__(self) -> str:
        low, high = interval_of(self.ratios)
        return f"{self.ratio:.3f} of the time of one graph ({low:.3f} to {high:.3f}, {self.pair})"


def is_timed(device: torch.device) -> bool:
    """Whether sharing is measured on *device*: other work on a CPU would decide."""
    return device.type != "cpu"


def cost_of(pair: CalledPair, program: LayerProgram, mode: str | None, name: str) -> SharingCost:
    """Compile the layers of *pair* as one graph named *name*, and time both ways in turns.

    *program* has the calls of the shared layers. In a *mode* that records CUDA graphs, the
    device's time in a CUDA graph counts; else that of the device or of the host, which is more.

    Raises:
        UnshareableLayerError: the pair cannot be compiled alone.
        Exception: an error of a compiler or of the device.
    """
    first, device = pair.first, pair.device
    artifact = LayerCompiler(mode, name).compile(pair.module, first.args, first.kwargs, pair.ranges)
    calls = {"shared": _shared(pair, program), "whole": _whole(pair, artifact)}
    is_recorded = mode in GRAPH_MODES and device.type != "cpu"
    launch = Launch.CUDAGRAPH if is_recorded else Launch.EAGER
    has_host = not is_recorded and device.type != "cpu"

    def measure() -> list[float]:
        batches = {way: batch_of(call, device, launch, L2.WARM, 1) for way, call in calls.items()}
        ratios = []
        for number in range(_ROUNDS):
            times = {}
            for way in in_turn([*calls], number):
                host = wall_us(calls[way], device, _HOST_CALLS)[0] if has_host else 0.0
                times[way] = PairTime(batches[way].time(), host)
            ratios.append(ratio_of(times["shared"], times["whole"], pair.layers))
        return ratios

    return SharingCost(pair.name, tuple(run_program(program, measure, (), {})))


def ratio_of(shared: PairTime, whole: PairTime, layers: int) -> float:
    """Return the time of *layers* shared layers over their time in one graph.

    Both times are of a pair. Each border of one graph saves what the pair's border saves, the
    device by fusion and the host a call; noise cannot make a layer cheaper than half of its share
    of the pair.
    """

    def layer_of_whole(shared_us: float, whole_us: float) -> float:
        saved = (shared_us - whole_us) * (layers - 2) / (2 * layers)
        return max(whole_us / 2 - saved, whole_us / 4)

    device = layer_of_whole(shared.device, whole.device)
    host = layer_of_whole(shared.host, whole.host)
    return max(shared.device, shared.host) / 2 / max(device, host)


def _shared(pair: CalledPair, program: LayerProgram) -> Callable[[int], object]:
    calls = [
        ([*each.inputs], each.number, name_of(program.outputs[each.number]))
        for each in (pair.first, pair.second)
    ]

    def call(_: int) -> object:
        return [call_layer(*each) for each in calls]

    return call


def _whole(pair: CalledPair, artifact: Any) -> Callable[[int], object]:
    tensors: dict[Any, torch.Tensor] = dict(
        zip(pair.first.artifact.paths, pair.first.inputs, strict=True)
    )
    inputs = [tensors[path] for path in artifact.paths]
    run = artifact.call_with(pair.module)
    return lambda _: run(inputs)
