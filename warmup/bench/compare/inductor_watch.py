"""`InductorWatch`: counts the benchmarks, hits and misses of inductor while a variant starts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from warmup.bench.compare.comparison import How
from warmup.core.phases import Phase, PhaseClock

if TYPE_CHECKING:
    from warmup.inductor.adapter import Inductor
    from warmup.serving.handle import Handle


@dataclass(frozen=True, slots=True)
class InductorWatch:
    """The counts of inductor's benchmarks so far."""

    counted: Counter[str]
    handle: Handle | None

    def counts(self) -> tuple[int, int | None, int | None]:
        """Return benchmarks, hits and misses so far; hits and misses are None without a table."""
        if self.handle is None:
            return sum(self.counted.values()), None, None
        report = self.handle.report()
        return (
            sum(report.uncovered.values()),
            sum(report.hits.values()),
            sum(report.misses.values()),
        )

    def sites(self) -> dict[str, int]:
        """Return benchmarks by site."""
        return dict(self.counted if self.handle is None else self.handle.report().uncovered)

    def miss_reasons(self) -> dict[str, int]:
        """Return misses by reason."""
        return {} if self.handle is None else dict(self.handle.report().miss_reasons)

    def remarks(self) -> list[str]:
        """Return a summary of the padded weights, if the variant pads weights."""
        prepared = None if self.handle is None else self.handle.prepared
        return [] if prepared is None else [prepared.summary]


@contextlib.contextmanager
def watching(
    how: How, table: str | None, device: str, padded: torch.nn.Module | None, clock: PhaseClock
) -> Iterator[InductorWatch]:
    """Count benchmarks until the exit, and let torch's timers drive *clock*.

    If *how* serves from a table, *table* is installed. Installing pads the weights of *padded* that
    the table has padding for.
    """
    if how is How.EAGER:
        yield InductorWatch(Counter(), None)
        return
    with clock.phase(Phase.IMPORT):
        from warmup.inductor import connect

        inductor: Inductor = connect()
    with contextlib.ExitStack() as stack:
        stack.enter_context(inductor.time_phases(clock))
        if how.is_served:
            with clock.phase(Phase.INSTALL):
                from warmup.serving.install import install

                # The report says which fields mismatch, and counts the misses.
                handle = stack.enter_context(
                    install(table, device=device, model=padded, allow_mismatch=True, quiet=True)
                )
            yield InductorWatch(Counter(), handle)
        else:
            yield InductorWatch(stack.enter_context(inductor.count_benchmarks()), None)
