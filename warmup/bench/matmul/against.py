"""`Against`: the columns of a benchmark beside those of an earlier one, read from its document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmup.bench.matmul.report import MmReport, Timed
from warmup.bench.matmul.shapes import Shape
from warmup.core.errors import SettingsError
from warmup.core.samples import geomean
from warmup.core.strict_json import JsonError, parse_json

_SAME: Final = ("dtype", "launch", "l2")
_OF_PLACE: Final = ("device", "torch", "triton")
_LEAST_US, _MOST_US = 1e-6, 1e12  # of a time: quotients of any two are finite and above zero


@dataclass(frozen=True, slots=True)
class EarlierTime:
    """An earlier device time of a column at a shape, with its 95 % interval, in microseconds."""

    device_us: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class TimeChange:
    """A device time over the earlier one.

    The interval has the quotients of opposite ends of both intervals, so it is wider than a 95 %
    interval of the ratio.
    """

    ratio: float
    interval: tuple[float, float]

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 1."""
        low, high = self.interval
        return not low <= 1 <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """An earlier benchmark: its provenance, how it was timed, and its times."""

    provenance: Mapping[str, str | None]
    method: Mapping[str, str]
    times: Mapping[tuple[Shape, str], EarlierTime]

    def change(self, shape: Shape, column: str, timed: Timed) -> TimeChange | None:
        """Return *timed* over the earlier time; None where there is none."""
        before = self.times.get((shape, column))
        if before is None:
            return None
        (low, high), (old_low, old_high) = timed.device.interval, before.interval
        return TimeChange(timed.device_us / before.device_us, (low / old_high, high / old_low))

    def changes(self, report: MmReport, column: str) -> dict[Shape, TimeChange]:
        """Return the changes of *column* in *report*, by shape."""
        found = {
            result.shape: self.change(result.shape, column, result.timed[column])
            for result in report.shapes
            if column in result.timed
        }
        return {shape: change for shape, change in found.items() if change is not None}

    def mean(self, report: MmReport, column: str) -> float | None:
        """Return the geometric mean of the changes of *column*; None without any."""
        ratios = [change.ratio for change in self.changes(report, column).values()]
        return geomean(ratios) if ratios else None

    def differences(self, report: MmReport) -> tuple[str, ...]:
        """Return what differs beside the times: ``dtype f16, here bf16``."""
        here = {"dtype": report.dtype, "launch": str(report.launch), "l2": str(report.l2)}
        pairs = [(name, self.method[name], here[name]) for name in _SAME]
        pairs += [
            (n, self.provenance.get(n) or "", report.provenance.get(n) or "") for n in _OF_PLACE
        ]
        return tuple(f"{name} {old}, here {new}" for name, old, new in pairs if old != new)


def read_against(path: Path) -> Against:
    """Return the benchmark in *path*, a ``bench-mm.json``.

    Raises:
        SettingsError: the file cannot be read, or is no such document.
    """
    remedy = "name a bench-mm.json that `warmup bench mm --out` wrote"
    try:
        document: Any = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--against {path}: {error.strerror}", remedy) from error
    except (JsonError, UnicodeDecodeError) as error:
        raise SettingsError(f"--against {path}: not JSON ({error})", remedy) from error
    try:
        if document["benchmark"] != "mm":
            raise SettingsError(f"--against {path}: no result of `bench mm`", remedy)
        return Against(
            provenance={name: document["provenance"][name] for name in (*_OF_PLACE, "date")},
            method={name: str(document[name]) for name in _SAME},
            times={
                (Shape(**entry["shape"]), column): _time_of(cell)
                for entry in document["shapes"]
                for column, cell in entry["columns"].items()
            },
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise SettingsError(
            f"--against {path}: no result of `bench mm` ({type(error).__name__}: {error})", remedy
        ) from error


def _time_of(cell: Any) -> EarlierTime:
    low, high = map(float, cell["device_interval_us"])
    time_us = float(cell["device_us"])
    if not all(_LEAST_US <= each <= _MOST_US for each in (low, time_us, high)) or low > high:
        raise ValueError(f"a time of {time_us} us, {low} to {high}")
    return EarlierTime(time_us, (low, high))
