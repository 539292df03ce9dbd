"""Serves a mix of request sizes, in the process of `server.py`; `mix.py` asks for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from warmup.measuring.clock import Events

_WAIT_CYCLES = 4_000_000  # two milliseconds at 2 GHz: longer than the host takes for a request
_TRIES = 3  # of a request for which the host was late nevertheless
_ENQUEUED = 30  # calls of each size

Answer = dict[str, Any]


class MixServer:
    """Requests to a server that *make* makes: every request of a mix, once for each round."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._rounds: list[list[float]] = []
        self._on_device: list[list[tuple[float, bool]]] = []

    def start_mix(self, mix: Sequence[int], **case: Any) -> Answer:
        """Start the server, which then has served every size of *mix* once."""
        self._mix, self._server = mix, self._make(seqlens=list(dict.fromkeys(mix)), **case)
        self._start_s = self._server.start()["call_seconds"]
        self._before = self._server.counts()
        return {"start_seconds": self._start_s}

    def serve_mix(self) -> Answer:
        """Serve the mix; on a GPU a second time, for the time of the device alone."""
        by_size = dict(zip(self._server.seqlens, self._server.calls, strict=True))
        calls = [by_size[size] for size in self._mix]
        self._rounds.append([_microseconds(call, self._server.synchronize) for call in calls])
        if self._server.is_gpu:
            self._on_device.append([_device_microseconds(call) for call in calls])
        return {"total_us": round(sum(self._rounds[-1]), 1)}

    def end_mix(self) -> Answer:
        """Return what all rounds took and did."""
        before, after, end = self._before, self._server.counts(), self._server.end()
        answer = {
            "start_seconds": self._start_s,
            "benchmarks_at_start": before["benchmarks"],
            "graphs_at_start": before["graphs"],
            "benchmarks": after["benchmarks"] - before["benchmarks"],
            "recompiles": after["graphs"] - before["graphs"],
            **_sums(self._rounds, self._mix),
        }
        if self._on_device:
            answer["late"] = sum(is_late for timed in self._on_device for _, is_late in timed)
            times = [[time_us for time_us, _ in timed] for timed in self._on_device]
            answer["device"] = _sums(times, self._mix)
            timed = zip(self._server.seqlens, self._server.calls, strict=True)
            answer["enqueue_us_by_size"] = {
                size: round(_enqueue_microseconds(call, self._server.synchronize), 2)
                for size, call in timed
            }
        if "outside" in end:
            answer["recompiles_of_buckets"] = end["recompiles"]
            answer |= {name: end.get(name, 0) for name in ("outside", "hits", "misses")}
        return answer


def _sums(rounds: Sequence[Sequence[float]], mix: Sequence[int]) -> Answer:
    """Return the total of each round, and what requests take by their medians of the rounds."""
    middle = [statistics.median(times) for times in zip(*rounds, strict=True)]
    by_size = {
        size: round(statistics.median(t for t, s in zip(middle, mix, strict=True) if s == size), 2)
        for size in sorted(set(mix))
    }
    return {
        "total_us": [round(sum(times), 1) for times in rounds],
        "p50_us": round(statistics.median(middle), 2),
        "p99_us": round(statistics.quantiles(middle, n=100)[98], 2),
        "us_by_size": by_size,
    }


def _microseconds(call: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Return what *call* took until the device was done with it."""
    start = time.perf_counter()
    call()
    synchronize()
    return (time.perf_counter() - start) * 1e6


def _enqueue_microseconds(call: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Return what the host took to enqueue *call*, the median of several on an idle device."""
    times = []
    for _ in range(_ENQUEUED):
        synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    synchronize()
    return statistics.median(times)


def _device_microseconds(call: Callable[[], object]) -> tuple[float, bool]:
    """Return what the device took for *call*, and whether the host was late at every try."""
    wait: Any = torch.cuda._sleep
    is_late, tries, events = True, 0, Events()
    while is_late and tries < _TRIES:
        tries += 1
        wait(_WAIT_CYCLES)
        with events:
            call()
        is_late, time_us = events.have_begun, events.elapsed_us
    return time_us, is_late
