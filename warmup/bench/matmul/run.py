"""`bench_mm`: implementations of a matmul, timed side by side on this device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from warmup.bench.files import result_folder
from warmup.bench.matmul.product import PRODUCT_TARGET, ProductOfWeight
from warmup.bench.matmul.report import MmReport, ShapeResult
from warmup.bench.matmul.shapes import CLASSIC, Shape, parse_shapes
from warmup.bench.matmul.timing import MatmulSetup, time_columns
from warmup.bench.model_in_memory import model_in_memory
from warmup.bench.provenance import provenance
from warmup.bench.reasons import Say, reason_of
from warmup.core.errors import SettingsError, WarmupError
from warmup.core.method import L2, Launch, Method
from warmup.inductor import connect
from warmup.inductor.machine import check_compiler, resolve_device
from warmup.measuring.device_peaks import measured_peaks
from warmup.table import Table
from warmup.table.codec import digest_of
from warmup.table.store import read
from warmup.tuning.build import build

MATMUL_ROUNDS: Final = 50
MATMUL_DTYPES: Final = ("f16", "bf16", "f32")
TABLE_FILE: Final = "bench-mm-table.json"

KeepMatmuls = Callable[[MmReport], None]


def bench_mm(
    *,
    shapes: str | None = None,
    dtype: str = "f16",
    launch: str = Launch.CUDAGRAPH,
    l2: str = L2.COLD,
    rounds: int = MATMUL_ROUNDS,
    out: Path | None = None,
    table: Path | None = None,
    device: str = "auto",
    say: Say = lambda _line: None,
    keep: KeepMatmuls = lambda _report: None,
) -> MmReport:
    """Time every column at every shape, each checked against a reference of higher precision.

    Arguments have the text form of the command line. Without *table*, a table is built for these
    shapes with the same launch and L2, in the folder *out* if given; a table that exists there is
    completed. Device times are taken first, *rounds* of each column, columns alternating; then
    total times, of calls launched singly. A column that fails, or whose output is wrong, is dropped
    at that shape with its reason. *say* gets lines of progress, and *keep* the report so far after
    each shape. On a CPU calls are launched singly with operands in the cache, as in a build.

    Raises:
        SettingsError: an argument is not valid, or the operands of a shape cannot be allocated.
        TableError: *table*, or that in *out*, cannot be read.
        AdapterError: this torch is not supported.
    """
    wanted = parse_shapes(shapes) if shapes is not None else CLASSIC
    if dtype not in MATMUL_DTYPES:
        raise SettingsError(f"--dtype {dtype!r}", f"use one of {', '.join(MATMUL_DTYPES)}")
    if rounds < 1:
        raise SettingsError(f"--rounds {rounds}", "give at least 1")
    connect()
    place = resolve_device(device)
    check_compiler(place)
    setup = MatmulSetup(place, dtype, _method(launch, l2, place), rounds)
    given = read(table) if table is not None else None
    with result_folder(out) as folder, _on(place):
        source = _TableBuild(setup, given, folder / TABLE_FILE)
        peaks = measured_peaks(place)
        results: list[ShapeResult] = []

        def report() -> MmReport:
            return MmReport(
                provenance=provenance(place),
                device_type=place.type,
                dtype=dtype,
                launch=setup.method.launch,
                l2=setup.method.l2,
                rounds=rounds,
                near_tie=setup.method.near_tie,
                peaks=peaks,
                table=None if source.table is None else digest_of(source.table),
                shapes=tuple(results),
            )

        if given is None:
            say(f"building the table for {len(wanted)} shapes")
            source.build(wanted, say)
        for i, shape in enumerate(wanted):
            say(f"{i + 1}/{len(wanted)} {shape}: compiling and timing")
            results.append(time_columns(shape, setup, source.table, source.missing))
            keep(report())
            if place.type == "cuda":
                torch.cuda.empty_cache()
    return report()


@dataclass
class _TableBuild:
    """The table under benchmark: ``table`` as given, or built at ``path``.

    ``missing`` is why the build stopped early; ``table`` then has the rows finished before.
    """

    setup: MatmulSetup
    table: Table | None
    path: Path
    missing: str = ""

    def build(self, shapes: Sequence[Shape], say: Say) -> None:
        """Build the table for *shapes*; the text of a `WarmupError` is kept in ``missing``."""
        try:
            if self.setup.device.type != "cpu":
                self.table = self._build(PRODUCT_TARGET, [shape.dims for shape in shapes])
                return
            for i, shape in enumerate(shapes):
                say(f"{i + 1}/{len(shapes)} {shape}: building its rows")
                model = ProductOfWeight(torch.randn(shape.k, shape.n))
                with model_in_memory(model, ["m", "k"], torch.randn) as target:
                    self.table = self._build(target, [f"m={shape.m};k={shape.k}"])
        except WarmupError as error:
            self.missing = reason_of(error)
            self.table = read(self.path) if self.path.exists() else None

    def _build(self, target: str, dims: Sequence[str]) -> Table:
        return build(
            target,
            dims=dims,
            dtype=self.setup.dtype,
            device=str(self.setup.device),
            launch=self.setup.method.launch,
            l2=self.setup.method.l2,
            out=self.path,
        ).table


def _method(launch: str, l2: str, device: torch.device) -> Method:
    if launch not in set(Launch):
        raise SettingsError(f"--launch {launch!r}", f"use one of {', '.join(Launch)}")
    if l2 not in set(L2):
        raise SettingsError(f"--l2 {l2!r}", f"use one of {', '.join(L2)}")
    if device.type == "cpu":
        return Method(launch=Launch.EAGER, l2=L2.WARM)
    return Method(launch=Launch(launch), l2=L2(l2))


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make *device* the current device, on which Triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
