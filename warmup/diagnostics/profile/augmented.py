"""`augmented_trace`: the trace again, with what is known of each kernel among its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from warmup.core.roofline import gbps_of, tflops_of
from warmup.diagnostics.profile.attribution import Attributed, row_us
from warmup.diagnostics.profile.profile import Profile
from warmup.diagnostics.profile.trace_file import TraceFile

PREFIX: Final = "warmup "  # of each argument that is added


def augmented_trace(file: TraceFile, profile: Profile) -> Iterator[bytes]:
    """Yield the JSON of the trace in *file*, in pieces, with arguments added from *profile*.

    Each event of a device gets its key, its winner, the row's time, and its work and rates, where
    they are known. What an event says already stays.
    """
    known = {(each.event.name, each.event.begin): each for each in profile.attributed}
    yield b'{"traceEvents": [\n'
    comma = b""
    for event in file.events():
        begin = event.get("ts")
        place = (str(event.get("name")), float(begin if isinstance(begin, (int, float)) else -1))
        each = known.get(place)
        if each is not None and event.get("ph") == "X":
            given = event.get("args")
            added = {f"{PREFIX}{name}": value for name, value in _figures(each).items()}
            event["args"] = {**(given if isinstance(given, dict) else {}), **added}
        yield comma + json.dumps(event, separators=(",", ":")).encode()
        comma = b",\n"
    yield b"\n]"
    for name, value in file.members.items():
        yield f", {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}".encode()
    yield b"}\n"


def _figures(each: Attributed) -> Mapping[str, Any]:
    figures: dict[str, Any] = {"known by": each.known.value}
    if each.keys:
        figures["key"] = " or ".join(each.keys)
    if each.row is not None:
        figures["winner"] = str(each.row.winner)
        figures["row us"] = row_us(each.row)[0]
    elif each.reason is not None:
        figures["no row"] = each.reason.value
    work, us = each.work, each.event.us
    if work is not None and us > 0:
        if work.flops:
            figures |= {"flops": work.flops, "TFLOP/s": round(tflops_of(work.flops, us), 3)}
        if work.moved:
            figures |= {"bytes": work.moved, "GB/s": round(gbps_of(work.moved, us), 1)}
    return figures
