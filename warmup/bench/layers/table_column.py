"""`LayerTable`: the backend ``table`` of a layer: inductor with what a table was tuned to.

The table is built for the layer at all of its shapes, before they are timed, in the mode
``max-autotune``: on a GPU it has the launch configs of the layer's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from warmup.bench.layers.backends import TABLE
from warmup.bench.layers.layer import LayerShape, OpenLayer, Operator
from warmup.bench.layers.operands import LayerOperands
from warmup.bench.model_in_memory import model_in_memory
from warmup.bench.reasons import reason_of
from warmup.core.errors import BuildError
from warmup.core.method import L2, Launch
from warmup.inductor.artifacts import with_own_code
from warmup.serving.install import install
from warmup.table import Table
from warmup.table.codec import digest_of
from warmup.table.store import read
from warmup.tuning.build import build

NO_WEIGHTS: Final = (
    "on a CPU a table has rows for products with constant weights, and the layer has no weights"
)


class LayerModel(nn.Module):
    """A layer as a model: forward is its ``eager``, and its parameters are those of the layer."""

    def __init__(self, layer: OpenLayer) -> None:
        super().__init__()
        self.layer = layer.definition
        self._eager = layer.eager

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer."""
        return self._eager(*inputs)


class LayerTable:
    """The table at *path*, built layer by layer; ``table`` is None until it has rows.

    ``missing`` is why a layer has no table at a shape, by the layer's name and the shape.
    """

    def __init__(
        self, path: Path, device: torch.device, dtype: str, launch: Launch, l2: L2
    ) -> None:
        self.table: Table | None = None
        self.hits: dict[str, int] = {}
        self.missing: dict[tuple[str, LayerShape], str] = {}
        self._path, self._device, self._dtype = path, device, dtype
        self._launch, self._l2 = launch, l2

    @property
    def digest(self) -> str | None:
        """The digest of the table, None where it answered nothing."""
        return digest_of(self.table) if self.hits and self.table is not None else None

    def build(self, layer: OpenLayer, shapes: Sequence[LayerShape]) -> None:
        """Tune the decisions of *layer* at *shapes*; why that failed at a shape is in ``missing``.

        Where the build of all *shapes* fails, each is built alone, so that a shape that cannot be
        built costs no other shape.

        Raises:
            TableError: the table that exists cannot be read.
        """
        reason: str | None = NO_WEIGHTS
        if self._device.type != "cpu" or layer.weights:
            reason = self._build(layer, shapes)
            if reason is not None and len(shapes) > 1:
                for shape in shapes:
                    self._note(layer, (shape,), self._build(layer, (shape,)))
                return
        self._note(layer, shapes, reason)

    def _note(self, layer: OpenLayer, shapes: Sequence[LayerShape], reason: str | None) -> None:
        if reason is not None:
            self.missing.update({(layer.name, shape): reason for shape in shapes})

    def _build(self, layer: OpenLayer, shapes: Sequence[LayerShape]) -> str | None:
        """Build *layer* at *shapes*, and return why that failed, None where it did not.

        Raises:
            TableError: the table that exists cannot be read.
        """
        names = [f"d{number}" for number in range(len(shapes[0].sizes))]

        def inputs(*sizes: int) -> object:
            with self._device:
                return layer.definition.inputs(sizes)

        try:
            with model_in_memory(LayerModel(layer), names, inputs) as target:
                report = build(
                    target,
                    dims=[
                        ";".join(f"{n}={size}" for n, size in zip(names, shape.sizes, strict=True))
                        for shape in shapes
                    ],
                    dtype=self._dtype,
                    device=str(self._device),
                    mode="max-autotune",
                    launch=self._launch,
                    l2=self._l2,
                    pad_weights=False,
                    out=self._path,
                )
        except Exception as error:  # noqa: BLE001  any failure drops this backend only
            self.table = read(self._path) if self._path.exists() else None
            return f"no table: {reason_of(error)}"
        self.table = report.table
        return None

    def operator(self, layer: OpenLayer, shape: LayerShape, operands: LayerOperands) -> Operator:
        """Return *layer* at *shape*, compiled from the table without gradients; it has run once.

        It is to be called with empty caches: a cached graph asks the table nothing.

        Raises:
            BuildError: there is no table for the layer at the shape, or it answered nothing.
            Exception: whatever compiling raises; a miss is an error.
        """
        missing = self.missing.get((layer.name, shape))
        if missing is not None or self.table is None:
            raise BuildError(missing or "no table was built")
        operator = torch.compile(with_own_code(layer.eager, TABLE), dynamic=False)
        device = str(self._device)
        with install(self.table, on_miss="strict", device=device, quiet=True) as handle:
            operands.sets[0].forward(operator)
        report = handle.report()
        hits, misses = sum(report.hits.values()), sum(report.misses.values())
        if not hits or misses:
            raise BuildError(f"the table answered {hits} decisions and missed {misses}")
        self.hits[layer.name] = self.hits.get(layer.name, 0) + hits
        return operator
