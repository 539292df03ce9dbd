"""`gaps_of`: where a device waited between its kernels, and whether the host was late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from warmup.diagnostics.profile.trace import DeviceEvent


@dataclass(frozen=True, slots=True)
class Gaps:
    """Microseconds in which a device was ``busy``, and in which it waited.

    ``host`` is the wait for kernels that the host enqueued only after the kernel before had ended,
    and before the first kernel of an iteration. ``device`` is the wait for kernels that were
    enqueued in time. ``overlapped`` is the time of kernels that ran beside others.
    """

    busy: float = 0.0
    host: float = 0.0
    device: float = 0.0
    overlapped: float = 0.0

    @property
    def window(self) -> float:
        """All of the time, from the first moment to the last."""
        return self.busy + self.host + self.device

    def __add__(self, other: Gaps) -> Gaps:
        return Gaps(
            *(self.busy + other.busy, self.host + other.host),
            *(self.device + other.device, self.overlapped + other.overlapped),
        )


def gaps_of(events: Sequence[DeviceEvent], begin: float | None, end: float | None) -> Gaps:
    """Return the gaps of one device's *events* from *begin* to *end*.

    Without these the time goes from the first event to the last.
    """
    ordered = sorted(events, key=lambda event: event.begin)
    if not ordered:
        return Gaps(host=max((end or 0.0) - (begin or 0.0), 0.0))
    at = ordered[0].begin if begin is None else begin
    gaps = Gaps()
    for event in ordered:
        gaps += _gap_before(event, at)
        ran = max(event.end - max(at, event.begin), 0.0)
        gaps += Gaps(busy=ran, overlapped=event.us - ran)
        at = max(at, event.end)
    return gaps + Gaps(host=max((end or at) - at, 0.0))


def _gap_before(event: DeviceEvent, at: float) -> Gaps:
    gap = event.begin - at
    if gap <= 0:
        return Gaps()
    if event.launched is None:
        return Gaps(device=gap)
    host = min(max(event.launched - at, 0.0), gap)
    return Gaps(host=host, device=gap - host)


def total(gaps: Iterable[Gaps]) -> Gaps:
    """Return the sum of *gaps*."""
    return sum(gaps, Gaps())
