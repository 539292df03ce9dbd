"""`read_counts`: the counts of the installed table, under the names that `warmup audit` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warmup.diagnostics.prometheus import BY_TABLE
from warmup.serving.handle import installed
from warmup.serving.report import Report

_COMPILE_METRICS: Final = (
    ("compiles_total", "Graphs that inductor compiled, or loaded from its caches."),
    ("compile_seconds_total", "Seconds in which threads compiled graphs, all threads together."),
)
_INSTALLED_METRIC: Final = ("installed", "1 while a table is installed in this process.")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric without its prefix ``warmup_``: each sample is its labels, in order, and its value.

    A name that ends in ``_total`` is a counter, any other a gauge.
    """

    name: str
    help_text: str
    labels: tuple[str, ...]
    samples: tuple[tuple[tuple[str, ...], float], ...] = ()


def read_counts() -> Iterator[Metric]:
    """Yield every metric in a fixed order; without an installed table they have no samples.

    The gauge ``installed`` has a sample with the digest of the installed table alone.
    """
    handle = installed()
    report = None if handle is None else handle.report()
    digest = () if report is None else (report.digest[:16],)
    yield Metric(*_INSTALLED_METRIC, ("digest",), ((digest, 1.0),) if digest else ())
    for name, _, help_text, field, label in BY_TABLE:
        if not name.endswith("_total") or field == "outside":  # calls are not counted in a process
            continue
        labels = ("digest", *([label] if label else []))
        found = {} if report is None else _values(report, field, is_split=label is not None)
        samples = tuple(((*digest, *key), value) for key, value in sorted(found.items()))
        yield Metric(name, help_text, labels, samples)
    for name, help_text in _COMPILE_METRICS:
        value = None if report is None else float(getattr(report, name.removesuffix("_total")))
        yield Metric(name, help_text, ("digest",), () if value is None else ((digest, value),))


def _values(report: Report, field: str, *, is_split: bool) -> Mapping[tuple[str, ...], float]:
    """Return the counts of *field*, a name of `BY_TABLE`.

    Where *is_split* there is a count for each label, else one total without a label.
    """
    found = getattr(report, "miss_reasons" if field == "misses" else field)
    if is_split:
        return {(name,): float(count) for name, count in found.items()}
    return {(): float(sum(found.values()) if isinstance(found, Mapping) else found)}
