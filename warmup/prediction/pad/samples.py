"""`PadSample`: a GEMM timed as it is and padded; `pad_samples` makes a training set of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.counted import counted
from warmup.core.errors import SettingsError
from warmup.core.json_node import Node
from warmup.prediction.pad.features import PadSizes, pad_sizes_of
from warmup.prediction.pad.pad_model import PadAnswer
from warmup.prediction.timing_lines import (
    MeasuredOn,
    candidates_of,
    is_unstable_line,
    origin_of,
    read_lines,
    time_in,
)
from warmup.prediction.training import RANDOM, one_method, one_origin

PAD_WAYS: Final = (PadAnswer.AS_IS, PadAnswer.PADDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPadding:
    """A pad key, and the times of both ways in microseconds; a way that failed has none.

    ``region_us`` are those of the compiled region, as it will run, ``own_us`` those of the calls
    that inductor's own pass would time. ``source`` is as in `TimedProblem`.
    """

    key: str
    source: str
    is_unstable: bool
    on: MeasuredOn | None
    method: str
    region_us: Mapping[str, float]
    own_us: Mapping[str, float]

    @property
    def has_both_ways(self) -> bool:
        """Whether both ways were timed as they will run."""
        return all(way in self.region_us for way in PAD_WAYS)


@dataclass(frozen=True, slots=True)
class PadSample:
    """A pad key whose both ways were timed in the compiled region.

    ``sizes`` are None where nothing is predicted. ``own_us`` are the times that inductor's own pass
    compares, as it is and padded; None where one of its calls has no time.
    """

    key: str
    source: str
    sizes: PadSizes | None
    as_is_us: float
    padded_us: float
    own_us: tuple[float, float] | None

    @property
    def best_us(self) -> float:
        """The shorter time."""
        return min(self.as_is_us, self.padded_us)

    def time_us(self, *, pads: bool) -> float:
        """Return the time of a decision."""
        return self.padded_us if pads else self.as_is_us

    def gain(self, *, pads: bool) -> float:
        """Return how many times as fast a decision is as never padding."""
        return self.as_is_us / self.time_us(pads=pads)


@dataclass(frozen=True, slots=True)
class PadSamples:
    """What was measured on one device by one method.

    ``drawn`` are random samples, which are fitted to; ``layers`` are pad decisions of models, which
    are judged alone. ``left_out`` counts by reason what could not be used.
    """

    drawn: tuple[PadSample, ...]
    layers: tuple[PadSample, ...]
    on: MeasuredOn
    method: str
    left_out: Mapping[str, int]


def read_paddings(paths: Iterable[str | Path]) -> tuple[TimedPadding, ...]:
    """Return the pad decisions in files of timings: of each key of a source the last line.

    Raises:
        SettingsError: a file cannot be read, or has a line that is no line of timings.
    """
    found = {(each.source, each.key): each for each in read_lines(paths, "pad", _read_padding)}
    return tuple(found.values())


def pad_samples(timed: Sequence[TimedPadding]) -> PadSamples:
    """Return *timed* as samples to fit to and layers to judge.

    Raises:
        SettingsError: no drawn sample can be used, or they were measured on different devices,
            versions or by different methods.
    """
    left_out: dict[str, int] = {}
    drawn: list[PadSample] = []
    layers: list[PadSample] = []
    used: list[TimedPadding] = []
    for one in sorted(timed, key=lambda each: (each.source, each.key)):
        sizes = pad_sizes_of(one.key)
        if (reason := _why_left_out(one, sizes)) is not None:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        used.append(one)
        as_is, padded = (one.region_us[way] for way in PAD_WAYS)
        own = [one.own_us[way] for way in PAD_WAYS if way in one.own_us]
        own_us = (own[0], own[1]) if len(own) == len(PAD_WAYS) else None
        sample = PadSample(one.key, one.source or "unnamed", sizes, as_is, padded, own_us)
        (drawn if one.source == RANDOM else layers).append(sample)
    sampled = {one.sizes.text for one in drawn if one.sizes is not None}
    unseen = [one for one in layers if one.sizes is None or one.sizes.text not in sampled]
    if seen := len(layers) - len(unseen):
        left_out["layers of sizes that were drawn too"] = seen
    if not drawn:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        raise SettingsError(
            f"no drawn sample among {counted(len(timed), 'pad decision')}"
            + (f": {reasons}" if reasons else ""),
            "measure some with `warmup pad collect`",
        )
    return PadSamples(
        tuple(drawn),
        tuple(unseen),
        one_origin([one.on for one in used if one.on is not None]),
        one_method(one.method for one in used),
        left_out,
    )


def _why_left_out(one: TimedPadding, sizes: PadSizes | None) -> str | None:
    if one.on is None or not one.on.sm_count:
        return "not measured on a GPU, or nobody knows on which"
    if one.is_unstable:
        return "with times that other processes disturbed"
    if not one.has_both_ways:
        return "not timed both ways as they will run"
    if one.source == RANDOM and sizes is None:
        return "of a form that is not predicted"
    return None


def _read_padding(key: str, members: Mapping[str, Node]) -> TimedPadding | None:
    region: dict[str, float] = {}
    own: dict[str, float] = {}
    for named in candidates_of(members, "choice", "time_us", "fused_us"):
        way = named["choice"].string()
        for times, field in ((own, "time_us"), (region, "fused_us")):
            if time_us := time_in(named[field]):
                times[way] = time_us
    return TimedPadding(
        key=key,
        source=members["source"].string() if "source" in members else "",
        is_unstable=is_unstable_line(members),
        on=origin_of(members),
        method=members["method"].string() if "method" in members else "",
        region_us=region,
        own_us=own,
    )
