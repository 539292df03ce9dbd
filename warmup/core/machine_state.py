"""`MachineState`: what disturbed the measurements of a build."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

BUSY_SHARE: Final = 0.10  # of the CPUs; above it other processes disturb a measurement
NOT_CHECKED: Final = "not checked: "  # begins a note that is equal for all devices


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """What disturbed the measurements of a build.

    ``worst_share`` is the largest share of the ``cpus`` usable CPUs that other processes took
    during a measurement, None where it was not read (on a GPU, or outside of Linux). ``complaints``
    are about a GPU, after the last measurement, and ``notes`` what is no reason to doubt a winner:
    a clock that full power lowers, what was not checked. ``disturbed`` of ``measured`` problems
    were measured while other processes took more than `BUSY_SHARE`. ``waited_s`` seconds passed in
    waiting for quiet.
    """

    measured: int = 0
    disturbed: int = 0
    cpus: float = 0.0
    worst_share: float | None = None
    waited_s: float = 0.0
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def united(states: Iterable[MachineState]) -> MachineState:
    """Return one state for *states*, those of several processes or of parts of a build."""
    each = tuple(states)
    shares = [state.worst_share for state in each if state.worst_share is not None]
    complaints = dict.fromkeys(text for state in each for text in state.complaints)
    notes = dict.fromkeys(text for state in each for text in state.notes)
    return MachineState(
        measured=sum(state.measured for state in each),
        disturbed=sum(state.disturbed for state in each),
        cpus=max((state.cpus for state in each), default=0.0),
        worst_share=max(shares, default=None),
        waited_s=sum(state.waited_s for state in each),
        complaints=tuple(complaints),
        notes=tuple(notes),
    )
