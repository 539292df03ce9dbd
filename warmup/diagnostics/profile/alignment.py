"""`align`: the events of one call of a graph, matched with the kernels that its plan has in order.

Generated kernels are found by name. What a library launches has names of its own, and may be
several kernels for one call, so it is matched by its place between generated kernels.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.planned_kernels import PlannedBy, PlannedKernel
from warmup.diagnostics.profile.trace import DeviceEvent

_GRAPH_PREFIX: Final = re.compile(r"^graph_[0-9]+_")  # of C++ kernels in a trace
_LAST_NUMBER: Final = re.compile(r"_[0-9]+$")
# Kernels that finish the work of the kernel before them, whose own name may have splitK too:
# nvjet_sm90_tst_64x32_64x16_4x1_v_bz_splitK_TNT, then cublasLt::splitKreduce_kernel.
_FINISHES: Final = re.compile(r"split_?k_?reduce", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Aligned:
    """The places in the plan that an event may have; several where its place is not certain.

    ``call`` is equal for events that one place launched together, as a library call may do.
    """

    places: tuple[int, ...]
    call: int


def align(events: Sequence[DeviceEvent], kernels: Sequence[PlannedKernel]) -> list[Aligned | None]:
    """Return for each of *events*, by time, its place in *kernels*; None where it has no place."""
    names = [name_of(event) for event in events]
    anchors = _anchors(names, kernels)
    found: list[Aligned | None] = [None] * len(events)
    for index, place in anchors.items():
        found[index] = Aligned((place,), place)
    for inside, left in _segments(anchors, len(events), kernels, names):
        for index, places in _in_segment(events, inside, left, kernels):
            found[index] = Aligned(places, places[0])
    return found


def name_of(event: DeviceEvent) -> str:
    """Return the kernel's name in the code that inductor generated, where it has one."""
    return _GRAPH_PREFIX.sub("", event.name)


def unnumbered(name: str) -> str:
    """Return the *name* of a generated kernel without its number, which differs between graphs."""
    return _LAST_NUMBER.sub("", name)


def _anchors(names: Sequence[str], kernels: Sequence[PlannedKernel]) -> dict[int, int]:
    """Return the place of each event whose name is in the plan, by the event's index."""
    places: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        if kernel.by is not PlannedBy.LIBRARY:
            places.setdefault(kernel.name, []).append(place)
    taken: dict[str, int] = dict.fromkeys(places, 0)
    anchors: dict[int, int] = {}
    for index, name in enumerate(names):
        if name in places:
            # A kernel that is launched more often than planned stays at its last place.
            turn = min(taken[name], len(places[name]) - 1)
            anchors[index] = places[name][turn]
            taken[name] += 1
    return anchors


def _segments(
    anchors: dict[int, int], count: int, kernels: Sequence[PlannedKernel], names: Sequence[str]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the events between two anchors, and the places between those of the anchors."""
    seen = set(names)
    loose = [
        place
        for place, kernel in enumerate(kernels)
        if kernel.by is PlannedBy.LIBRARY or kernel.name not in seen
    ]
    bounds = [(-1, -1), *_rising(anchors), (count, len(kernels))]
    for (first, low), (last, high) in itertools.pairwise(bounds):
        inside = [index for index in range(first + 1, last) if index not in anchors]
        if inside:
            yield inside, [place for place in loose if low < place < high]


def _rising(anchors: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the anchors whose places rise with the events; streams may change the order."""
    highest = -1
    for index, place in sorted(anchors.items()):
        if place > highest:
            highest = place
            yield index, place


def _in_segment(
    events: Sequence[DeviceEvent],
    inside: Sequence[int],
    places: Sequence[int],
    kernels: Sequence[PlannedKernel],
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the place of each event of one segment."""
    if not places:
        return
    groups = _groups(events, inside)
    if len(groups) != len(places):
        groups = _joined(events, groups)
    if len(places) == 1 or len(groups) == len(places):
        spread = places if len(places) == len(groups) else [places[0]] * len(groups)
        for group, place in zip(groups, spread, strict=True):
            yield from ((index, (place,)) for index in group)
        return
    matched = _by_operator(events, groups, places, kernels)
    for number, group in enumerate(groups):
        yield from ((index, matched.get(number, tuple(places))) for index in group)


def _groups(events: Sequence[DeviceEvent], inside: Sequence[int]) -> list[list[int]]:
    """Return the events of *inside*, those of one operator's call together."""
    groups: list[list[int]] = []
    last: object = None
    for index in inside:
        call = events[index].call
        top = None if call is None else call.top or call
        if top is not None and top is last:
            groups[-1].append(index)
        else:
            groups.append([index])
        last = top
    return groups


def _joined(events: Sequence[DeviceEvent], groups: Sequence[list[int]]) -> list[list[int]]:
    """Return *groups* with kernels that finish others' work in the group before them."""
    joined: list[list[int]] = []
    for group in groups:
        if joined and all(_FINISHES.search(events[index].name) for index in group):
            joined[-1] = joined[-1] + group
        else:
            joined.append(list(group))
    return joined


def _by_operator(
    events: Sequence[DeviceEvent],
    groups: Sequence[Sequence[int]],
    places: Sequence[int],
    kernels: Sequence[PlannedKernel],
) -> dict[int, tuple[int, ...]]:
    """Return the place of each group whose operator is the planned one, taken in order."""
    found: dict[int, tuple[int, ...]] = {}
    rest = list(places)
    for number, group in enumerate(groups):
        call = events[group[0]].call
        if call is None:
            continue
        name = _base((call.top or call).operator.name)
        for turn, place in enumerate(rest):
            if _base(kernels[place].name) == name:
                found[number] = (place,)
                del rest[: turn + 1]
                break
    return found


def _base(operator: str) -> str:
    """Return ``addmm`` for ``aten::addmm`` and for ``aten.addmm.out``."""
    text = operator.replace("::", ".")
    parts = text.split(".")
    return parts[1] if len(parts) > 1 else text
