"""`LayersReport`: the results of the layers benchmark, with rates and speed-ups over eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from warmup.bench.layers.layer import EAGER, LayerShape
from warmup.core.method import L2, Launch, OptionValue
from warmup.core.roofline import Peaks, gbps_of, tflops_of
from warmup.core.samples import (
    Samples,
    busy_sentence,
    first_busy_sentence,
    geomean,
    interval_of,
)


class Pass(StrEnum):
    """The part of a layer that is timed as one call."""

    FORWARD = "forward"
    BOTH = "forward+backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCell:
    """One layer at one shape in one pass on one backend: its times, or the reason for none.

    ``error`` is the largest relative L2 distance of its outputs and gradients from eager float32,
    None where they were not compared; ``is_wrong`` where it exceeds the tolerance. ``moved`` is the
    least number of bytes the pass moves, None where its operands do not exist, and ``flops`` the
    number of its operations, None where the layer does not say.
    """

    layer: str
    shape: LayerShape
    step: Pass
    backend: str
    moved: int | None
    flops: int | None = None
    samples: Samples | None = None
    error: float | None = None
    reason: str = ""
    is_wrong: bool = False

    @property
    def gbps(self) -> float | None:
        """The least bytes over the median time, in GB/s; None without times."""
        if self.samples is None or self.moved is None:
            return None
        return gbps_of(self.moved, self.samples.median)

    @property
    def tflops(self) -> float | None:
        """The operations over the median time, in TFLOP/s; None without either."""
        if self.samples is None or self.flops is None:
            return None
        return tflops_of(self.flops, self.samples.median)

    @property
    def flops_per_byte(self) -> float | None:
        """The operations over the least bytes; None without either."""
        return self.flops / self.moved if self.flops and self.moved else None


@dataclass(frozen=True, slots=True)
class MeanSpeedup:
    """The geometric mean of speed-ups over *shapes* shapes, with its 95 % interval.

    The mean is that of the ratios of medians; the interval is that of the median of the means
    which the single rounds have.
    """

    mean: float
    interval: tuple[float, float]
    shapes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersReport:
    """A finished benchmark: a cell for each layer, shape, pass and usable backend, in that order.

    ``missing`` says why other backends could not be used at all, ``options`` are those of the
    backends of ``--custom`` by name, ``titles`` are the names of layers and of their last sizes,
    ``tolerance`` is the largest error that is right, ``table`` the digest of the table that was
    served, and ``hits`` how many decisions it answered by layer. ``peaks`` are those of the device,
    None where there are none.
    """

    provenance: Mapping[str, str | None]
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    backends: tuple[str, ...]
    missing: Mapping[str, str]
    versions: Mapping[str, str]
    options: Mapping[str, Mapping[str, OptionValue]]
    tolerance: float
    titles: Mapping[str, tuple[str, str]]
    peaks: Peaks | None
    cells: tuple[LayerCell, ...]
    table: str | None = None
    hits: Mapping[str, int] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that were compared, in order."""
        return tuple(dict.fromkeys(cell.layer for cell in self.cells))

    @property
    def steps(self) -> tuple[Pass, ...]:
        """The passes that were timed, in order."""
        return tuple(dict.fromkeys(cell.step for cell in self.cells))

    @property
    def too_busy(self) -> str | None:
        """Why eager's times allow no verdict, with the first such layer and shape; else None."""
        return first_busy_sentence(
            (f"{EAGER} {cell.layer} {cell.shape} {cell.step}", cell.samples)
            for cell in self.cells
            if cell.backend == EAGER and cell.samples is not None
        )

    def share(self, cell: LayerCell) -> float | None:
        """Return the share of the measured peak bandwidth, None without times or peak.

        None too with a warm L2, from which the bytes may come.
        """
        if self.peaks is None or cell.gbps is None or self.l2 is L2.WARM:
            return None
        return cell.gbps / self.peaks.gbps

    def speedup(self, cell: LayerCell) -> float | None:
        """Return eager's median time over that of *cell*, None where either has no times.

        None too where eager's times scatter too far for a ratio.
        """
        base = self._base_of(cell)
        if base is None or cell.samples is None:
            return None
        return base.median / cell.samples.median

    def mean_speedup(
        self, backend: str, step: Pass, layer: str | None = None
    ) -> MeanSpeedup | None:
        """Return the mean of the speed-ups of *backend* in *step*.

        The mean is over the shapes of *layer*, or of all layers; None without any speed-up.
        """
        pairs = [
            (base, cell.samples)
            for cell in self.cells
            if (cell.backend, cell.step) == (backend, step) and layer in (None, cell.layer)
            if cell.samples is not None and (base := self._base_of(cell)) is not None
        ]
        if not pairs:
            return None
        rounds = zip(
            *(zip(base.times_us, own.times_us, strict=True) for base, own in pairs), strict=True
        )
        means = [geomean([base / own for base, own in each]) for each in rounds]
        mean = geomean([base.median / own.median for base, own in pairs])
        return MeanSpeedup(mean, interval_of(means), len(pairs))

    @property
    def wrong(self) -> tuple[LayerCell, ...]:
        """The cells whose outputs or gradients exceed the tolerance."""
        return tuple(cell for cell in self.cells if cell.is_wrong)

    @property
    def is_compared(self) -> bool:
        """Whether any output of a backend beside eager was compared with the reference.

        Where eager is the only backend that was asked for, its own outputs count.
        """
        others = {name for name in self.backends if name != EAGER} or {EAGER}
        return any(
            cell.error is not None or cell.is_wrong for cell in self.cells if cell.backend in others
        )

    def of_layer(self, layer: str) -> Iterator[LayerCell]:
        """Yield the cells of *layer*, in order."""
        return (cell for cell in self.cells if cell.layer == layer)

    def _base_of(self, cell: LayerCell) -> Samples | None:
        """Return eager's times where *cell* is; None where there are none, or no ratio of them."""
        place = (cell.layer, cell.shape, cell.step)
        for each in self.cells:
            if each.backend == EAGER and (each.layer, each.shape, each.step) == place:
                base = each.samples
                return None if base is None or busy_sentence(EAGER, base) is not None else base
        return None
