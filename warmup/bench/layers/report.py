"""`LayersReport`: the results of the layers benchmark, with rates and speed-ups over eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from warmup.bench.layers.backends import EAGER
from warmup.bench.layers.layers import Rows
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks, gbps_of
from warmup.core.samples import Samples, busy_sentence, first_busy_sentence, geomean


class Pass(StrEnum):
    """The part of a layer that is timed as one call."""

    FORWARD = "forward"
    BOTH = "forward+backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCell:
    """One layer at one shape in one pass on one backend: its times, or the reason for none.

    ``error`` is the largest relative L2 distance of its outputs and gradients from eager float32,
    None where they were not compared. ``moved`` is the least number of bytes the pass moves.
    """

    layer: str
    shape: Rows
    step: Pass
    backend: str
    moved: int
    samples: Samples | None = None
    error: float | None = None
    reason: str = ""

    @property
    def gbps(self) -> float | None:
        """The least bytes over the median time, in GB/s; None without times."""
        return None if self.samples is None else gbps_of(self.moved, self.samples.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersReport:
    """A finished benchmark: a cell for each layer, shape, pass and usable backend, in that order.

    ``missing`` says why other backends could not be used at all, ``options`` are those of the
    backend ``custom``, and ``peaks`` are those of the device, None where there are none.
    """

    provenance: Mapping[str, str | None]
    device_type: str
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    backends: tuple[str, ...]
    missing: Mapping[str, str]
    versions: Mapping[str, str]
    options: Mapping[str, bool | int]
    peaks: Peaks | None
    cells: tuple[LayerCell, ...]

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
        base = self._by_place().get((cell.layer, cell.shape, cell.step, EAGER))
        if base is None or base.samples is None or cell.samples is None:
            return None
        if busy_sentence(EAGER, base.samples) is not None:
            return None
        return base.samples.median / cell.samples.median

    def mean_speedup(
        self, backend: str, step: Pass, layer: str | None = None
    ) -> tuple[float, int] | None:
        """Return the geometric mean of the speed-ups of *backend* in *step*, and their number.

        The mean is over the shapes of *layer*, or of all layers; None without any speed-up.
        """
        ratios = [
            ratio
            for cell in self.cells
            if (cell.backend, cell.step) == (backend, step) and layer in (None, cell.layer)
            if (ratio := self.speedup(cell)) is not None
        ]
        return (geomean(ratios), len(ratios)) if ratios else None

    def of_layer(self, layer: str) -> Iterator[LayerCell]:
        """Yield the cells of *layer*, in order."""
        return (cell for cell in self.cells if cell.layer == layer)

    def _by_place(self) -> dict[tuple[str, Rows, Pass, str], LayerCell]:
        return {(cell.layer, cell.shape, cell.step, cell.backend): cell for cell in self.cells}
