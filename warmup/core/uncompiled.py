"""`Uncompiled`: what of a model runs outside of torch.compile's graphs, where no row can help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.counted import counted
from warmup.core.events import Event, EventName


@dataclass(frozen=True, slots=True)
class Uncompiled:
    """The frames that torch.compile left uncompiled, each with torch's reason.

    ``matmuls`` is the number of matrix products and convolutions that a call runs outside of any
    graph; it is counted only where there are frames.
    """

    frames: tuple[str, ...] = ()
    matmuls: int = 0

    def with_frames(self, frames: Iterable[str]) -> Uncompiled:
        """Return these with *frames* too."""
        return replace(self, frames=(*self.frames, *frames))

    def lines(self) -> Iterator[str]:
        """Yield a sentence for each frame, and one for the matmuls."""
        for frame in self.frames:
            yield f"uncompiled: {frame}"
        if self.matmuls:
            yield f"matmuls that a call runs outside any graph, so without a row: {self.matmuls}"

    def __str__(self) -> str:
        frames = "; ".join(self.frames)
        more = f"; matmuls outside any graph: {self.matmuls}" if self.matmuls else ""
        return f"{counted(len(self.frames), 'uncompiled frame')}: {frames}{more}"


NONE_UNCOMPILED: Final = Uncompiled()


def frame_in(event: Event) -> str | None:
    """Return the frame of *event* with torch's reason; None where it is another event."""
    if event.name is not EventName.UNCOMPILED:
        return None
    return "{frame}: {reason}".format_map(event.fields)
