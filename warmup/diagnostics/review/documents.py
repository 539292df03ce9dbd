"""`review_file`: a table, or JSON that `compare` or `bench` wrote, as measurements for review."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warmup.core.dtypes import narrowest
from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular
from warmup.core.json_node import Node
from warmup.core.method import L2
from warmup.core.peaks import peaks_from_json
from warmup.core.roofline import Peaks, Work
from warmup.core.samples import Samples
from warmup.core.strict_json import JsonError, parse_json
from warmup.diagnostics.review.measurement import Measurement, Reviewed
from warmup.diagnostics.review.table_rows import CPU_LATENCY_US, GPU_LATENCY_US, review_table
from warmup.table.store import read

_MAX_RESULT_BYTES: Final = 64 * 1024 * 1024
_TF32_END: Final = "tf32"  # a precision of f32 products: the end of a column's name
_FORWARD: Final = "forward"  # of the passes of a layer
_TABLE_BEGINS: Final = re.compile(rb'\s*\{\s*"(?:imported|policy)"')  # names in a table are sorted


def peaks_in(path: Path) -> Peaks:
    """Return the measured peaks in the file *path*, the value of `--peaks`.

    Raises:
        SettingsError: the file has no measured peaks, or `review_file` does not know its form.
        TableError: as `review_file` says.
    """
    peaks = review_file(path).peaks
    if peaks is None:
        raise SettingsError(f"--peaks {path}: it has no measured peaks", "name another file")
    return peaks


def review_file(path: Path, peaks: Peaks | None = None) -> Reviewed:
    """Return the measurements in the file *path*, with *peaks*, or else those of the file.

    Raises:
        SettingsError: the file is no table and no document of `compare` or `bench`.
        TableError: the file cannot be read, is not JSON, or is a damaged table.
    """
    document = _document_of(path)
    if document is None:
        return review_table(read(path), peaks)
    if not isinstance(document, dict):
        raise _unknown(path)
    name = "compare" if "variants" in document else f"bench {document.get('benchmark')}"
    reader = _READERS.get(name)
    if reader is None:
        raise _unknown(path)
    try:
        measurements = tuple(reader(document))
        own = document["peaks"]
        is_cold = document.get("l2", document.get("origin", {}).get("l2")) == L2.COLD
        is_cpu = _is_cpu(document)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        ZeroDivisionError,
    ) as error:
        raise SettingsError(
            f"{shown(path)}: damaged: not what `warmup {name}` writes "
            f"({type(error).__name__}: {shown(error)})",
            "write it again with --out",
        ) from error
    origin = "given" if peaks is not None else "measured with it"
    if peaks is None and own is not None:
        peaks = _peaks(Node(own, f"{path}: peaks"))
    latency = CPU_LATENCY_US if is_cpu else GPU_LATENCY_US
    return Reviewed(
        measurements=measurements,
        peaks=peaks,
        origin=origin,
        is_cold=is_cold and not is_cpu,
        latency_us=latency,
    )


def _document_of(path: Path) -> Any:
    """Return the JSON value in *path*; None where it is a table, which has a reader of its own."""
    try:
        with open_regular(path) as file:
            raw = file.read(_MAX_RESULT_BYTES + 1)
        if _TABLE_BEGINS.match(raw):
            return None
        if len(raw) > _MAX_RESULT_BYTES:
            raise _unreadable(path, f"larger than {_MAX_RESULT_BYTES} bytes")
        document = parse_json(raw.decode("utf-8"))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except JsonError as error:
        raise _unreadable(path, f"not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"not UTF-8 (byte {error.start})") from error
    is_table = isinstance(document, dict) and {"policy", "provenance"} <= document.keys()
    return None if is_table else document


def _unreadable(path: Path, reason: str) -> SettingsError:
    return SettingsError(f"{shown(path)}: cannot be read: {shown(reason)}", "name another file")


def _peaks(node: Node) -> Peaks:
    if isinstance(node.value, dict):  # documents of an earlier warmup have no clocks by dtype
        node = Node({"clocks": {}, **node.value}, node.path)
    return peaks_from_json(node)


def _of_compare(document: Any) -> Iterator[Measurement]:
    """Yield the time of each variant in each bucket."""
    buckets = [entry["bucket"] for entry in document["buckets"]]
    for entry in document["buckets"]:
        sizes = entry["bucket"]
        # Operations of several dtypes are taken for those of the fastest, the least share.
        dtype = narrowest(entry.get("dtypes", ()), document["origin"]["dtype"])
        work = _work(dtype, entry["flops"], entry["moved_bytes"])
        for cell in entry["variants"]:
            yield Measurement(
                subject=f"{cell['name']}, {_words(sizes)}",
                time_us=float(cell["median_us"]),
                work=work,
                total_us=float(cell["wall_us"]),
                spread=float(cell["spread"]),
                series=_series(cell["name"], sizes, buckets),
            )


def _of_products(document: Any) -> Iterator[Measurement]:
    """Yield the time of each column at each shape of an earlier `bench mm`, or of each cell."""
    if "cells" in document:
        yield from _of_layers(document)
        return
    shapes = [entry["shape"] for entry in document["shapes"]]
    for entry in document["shapes"]:
        shape = entry["shape"]
        m, n, k = (int(shape[name]) for name in ("m", "n", "k"))
        for name, cell in entry["columns"].items():
            device_us = float(cell["device_us"])
            dtype = _TF32_END if name.endswith(_TF32_END) else document["dtype"]
            moved = float(cell["gbps"]) * device_us * 1e3
            yield Measurement(
                subject=f"{name}, {_words(shape)}",
                time_us=device_us,
                work=_work(dtype, 2 * m * n * k, round(moved)),
                total_us=float(cell["total_us"]),
                spread=_spread(cell["device_rounds_us"]),
                series=_series(name, shape, shapes),
            )


def _of_layers(document: Any) -> Iterator[Measurement]:
    """Yield the time of each layer, pass and backend of `bench`."""
    for cell in document["cells"]:
        if cell["time_us"] is None:
            continue
        sizes = {"rows": int(cell["rows"]), "columns": int(cell["columns"])}
        name = f"{cell['layer']} {cell['pass']} {cell['backend']}"
        same = [
            {"rows": int(each["rows"]), "columns": int(each["columns"])}
            for each in document["cells"]
            if (each["layer"], each["pass"]) == (cell["layer"], cell["pass"])
        ]
        yield Measurement(
            subject=f"{name}, {_words(sizes)}",
            time_us=float(cell["time_us"]),
            work=_work(document["dtype"], _flops(cell.get("flops")), cell["least_bytes"]),
            spread=_spread(cell["rounds_us"]),
            series=_series(name, sizes, same),
            # The backward pass finds in the cache what the forward pass has just written.
            is_cold=cell["pass"] == _FORWARD,
        )


_READERS: Final[Mapping[str, Callable[[Any], Iterator[Measurement]]]] = {
    "compare": _of_compare,
    "bench mm": _of_products,
    "bench layers": _of_layers,
}


def _work(dtype: str, flops: int | None, moved: int | None) -> Work | None:
    return None if moved is None else Work(dtype, flops, int(moved))


def _flops(value: Any) -> int | None:
    """Return the operations of a layer; None where the layer, or an earlier document, has none."""
    return None if value is None else int(value)


def _spread(rounds_us: Any) -> float:
    return Samples(tuple(float(time_us) for time_us in rounds_us)).spread


def _series(
    name: str, sizes: Mapping[str, int], others: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Return each size that differs among *others*, by *name* and the sizes that stay."""
    return {
        f"{name} by {dim} {_words({n: s for n, s in sizes.items() if n != dim})}": int(sizes[dim])
        for dim in sizes
        if len({each[dim] for each in others}) > 1
    }


def _words(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def _is_cpu(document: Any) -> bool:
    if "origin" in document:
        return bool(document["origin"]["runtime"]["device"]["type"] == "cpu")
    return document["provenance"]["cuda"] is None


def _unknown(path: Path) -> SettingsError:
    return SettingsError(
        f"{shown(path)}: no table, and not JSON of `warmup compare` or `warmup bench`",
        "name a table, or a file that these wrote with --out",
    )
