"""Reading traces: gzipped, damaged, too large; iterations, gaps, peaks, and two traces compared."""

from __future__ import annotations

import functools
import gzip
import json
import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_events import DEVICE, GpuTrace, plan_of
from sample_tables import make_table

from warmup.bench import trace as reading
from warmup.bench.profile import Limit, Profile, differences_of, profile_trace
from warmup.bench.trace import read_trace
from warmup.core.errors import SettingsError
from warmup.core.roofline import GraphPlan, Peaks, PlannedBy, PlannedKernel
from warmup.table.schema import Table

PEAKS = Peaks(
    tflops={"bf16": 800.0},
    gbps=3000.0,
    clock_mhz=1980,
    measured="2026-01-02",
    clocks={"bf16": 1600},
)


def test_gzipped_or_not_and_as_a_list_alone(tmp_path: Path) -> None:
    """The content decides, not the name; Chrome's other form is read too."""
    trace, path = GpuTrace(), tmp_path / "trace.json"
    trace.kernel("nvjet", 0, 9)
    for pack in (gzip.compress, bytes):
        for document in ({"traceEvents": trace.events}, trace.events):
            path.write_bytes(pack(json.dumps(document).encode()))
            assert [event.name for event in read_trace(path).events] == ["nvjet"], pack


def test_what_is_no_trace_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty, cut off, of another form, too large, too deep: the error names file and reason."""
    monkeypatch.setattr(reading, "LARGEST_TRACE", 1_000_000)
    path = tmp_path / "trace.json"
    wrong = {
        b"": "truncated",
        b'{"traceEvents": [{"ph": "X"}': "truncated",
        b'{"events": []}': "missing required field `traceEvents`",
        b'{"traceEvents": [3]}': "$.traceEvents[0]",
        b"no JSON": "malformed",
        b'{"traceEvents": [{"name": "\xff"}]}': "code",
        gzip.compress(b'{"traceEvents": [' * 100, mtime=0)[:40]: "end-of-stream",
        gzip.compress(b" " * 1_000_001): "more than 1,000,000 bytes once unpacked",
        b'{"traceEvents": [], "warmup": ' + b"[" * 100_000: "maximum recursion depth",
        b'{"traceEvents": []}': "no kernel and no operator",
    }
    for content, reason in wrong.items():
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=r"trace\.json") as failed:
            read_trace(path)
        assert reason in str(failed.value), content[:40]


def planned(flops: int | None, moved: int) -> PlannedKernel:
    return PlannedKernel(
        name="aten.mm.out", by=PlannedBy.LIBRARY, keys=(), dtype="bf16", flops=flops, moved=moved
    )


def _places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (*before, key)
        if isinstance(each, (dict, list)):
            yield from _places(each, (*before, key))


def test_no_value_of_a_trace_ends_in_a_traceback(table: Table, tmp_path: Path) -> None:
    """Whatever stands at a place of a trace, or does not, it is profiled, or refused by name."""
    trace, matmul = GpuTrace(), planned(None, 2)
    trace.call("b", "f", 0, 100)
    shapes = {"Input Dims": [[2, 3], [3, 4]], "Input Strides": [[3, 1], [4, 1]]}
    named = {"Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
    external = trace.operator("aten::mm", 2, 5, **shapes, **named)
    trace.kernel("nvjet", 10, 9, launched=3, external=external)
    path = trace.write(tmp_path / "t.json", plan_of("b", GraphPlan("f", (matmul,)), clocks=(1600,)))
    text, refused = path.read_text(), list[str]()
    wrong: list[Any] = [None, True, -1, 1.5, 2**70, 10**400, math.inf, "", "(" * 10_000, [], [[]]]
    gone = object()
    for place in _places(json.loads(text)):
        for value in (*wrong, {"a": 1}, gone):
            document = json.loads(text)
            holder = functools.reduce(operator.getitem, place[:-1], document)
            holder[place[-1]] = value
            if value is gone:
                del holder[place[-1]]
            path.write_text(json.dumps(document))
            try:
                profile_trace(read_trace(path), table)
            except SettingsError as error:
                refused.append(str(error))
    assert refused
    assert all(str(path) in each for each in refused)


def profiled(trace: GpuTrace, path: Path) -> Profile:
    return profile_trace(read_trace(trace.write(path)), None)


@pytest.fixture
def table() -> Table:
    made = make_table({})
    return replace(made, provenance=replace(made.provenance, peaks=PEAKS))


def test_gaps_are_of_the_host_or_of_the_device(tmp_path: Path) -> None:
    """A kernel enqueued after the kernel before ended waits for the host, any other does not."""
    trace = GpuTrace()
    trace.host("warmup bucket b", 0, 100, "user_annotation")
    trace.kernel("first", 10, 20, launched=4)  # waits 5 us for its launch, then 5 us
    trace.kernel("late", 50, 10, launched=41)  # the launch ends 12 us after the kernel before
    trace.kernel("early", 63, 7, launched=45)
    trace.kernel("beside", 65, 15, launched=46)
    (bucket,) = profiled(trace, tmp_path / "t.json").buckets
    assert bucket.busy_us == 47
    assert bucket.host_gap_us == 5 + 12 + 20  # the last 20 us after the last kernel
    assert bucket.device_gap_us == 5 + 8 + 3


def test_steps_of_the_profiler_are_iterations(tmp_path: Path) -> None:
    """Where warmup made no marks, those of torch's schedule count; kernels outside do not."""
    trace = GpuTrace()
    trace.kernel("nvjet", 5, 10, launched=4)
    for step in (0, 1):
        trace.host(f"ProfilerStep#{step}", 100.0 * step + 50, 100, "user_annotation")
        trace.kernel("nvjet", 100.0 * step + 60, 10, launched=100 * step + 55)
    found = profiled(trace, tmp_path / "t.json")
    (bucket,) = found.buckets
    assert (bucket.iterations, found.outside_us, found.device_us) == (2, 10, 20)


def test_what_limits_a_kernel_at_the_clock_that_was_seen(table: Table, tmp_path: Path) -> None:
    """The larger share of a peak says the limit; a short kernel far below both has none.

    A compute peak measured at 1600 MHz is half of it at 800 MHz; memory is as measured.
    """
    for work, us, clocks, limit, share in (
        ((40_000_000_000, 1_000_000), 100.0, (), Limit.COMPUTE, 0.5),
        ((1_000_000, 150_000_000), 100.0, (), Limit.MEMORY, 0.5),
        ((None, 3_000), 2.0, (), Limit.LATENCY, 0.0005),
        ((None, 300_000), 100.0, (), Limit.OTHER, 0.001),
        ((10**10, 1), 100.0, (790, 800, 1980), Limit.COMPUTE, 0.25),
    ):
        trace = GpuTrace()
        trace.call("b", "f", 0, 500)
        trace.kernel("nvjet", 10, us, launched=5)
        plan = plan_of("b", GraphPlan("f", (planned(*work),)), clocks=clocks)
        found = profile_trace(read_trace(trace.write(tmp_path / "t.json", plan)), table)
        (line,) = found.lines
        assert (line.limit, line.peak_share) == (limit, pytest.approx(share)), work
    assert found.peaks is not None
    assert (found.clock_mhz, found.peaks.tflops["bf16"], found.peaks.gbps) == (800, 400, 3000)


def calls_of(*times: float, kernel: str) -> GpuTrace:
    trace = GpuTrace()
    for number, us in enumerate(times):
        begin = 1000.0 * number
        trace.call("b", "f", begin, 500)
        trace.kernel(kernel, begin + 10, us, launched=begin + 5)
        trace.kernel("triton_poi_same_1", begin + 200, 50, launched=begin + 6)
    return trace


def test_traces_of_different_lengths_compare_by_iteration(tmp_path: Path) -> None:
    """Two traces of 3 and 8 calls: what got slower, by how much of a call, and whether surely."""
    before = profiled(calls_of(10, 11, 12, kernel="triton_poi_a_0"), tmp_path / "a.json")
    after = profiled(calls_of(*[20.0] * 8, kernel="triton_poi_a_5"), tmp_path / "b.json")
    whole, slower, same = differences_of(before, after)
    assert (whole.subject, whole.before_us, whole.after_us) == (None, 61, 70)
    assert (slower.subject, slower.added_us) == ("triton_poi_a", 9)
    assert slower.interval == (20 / 12, 20 / 10)
    assert slower.is_certain
    assert (same.added_us, same.is_certain) == (0, False)
    # What is new and what is gone have a time in one trace, and no ratio.
    other = profiled(calls_of(30, kernel="triton_poi_new_0"), tmp_path / "c.json")
    found = {each.subject: each for each in differences_of(before, other)}
    assert (found["triton_poi_a"].after_us, found["triton_poi_new"].before_us) == (None, None)
    assert (found["triton_poi_new"].ratio, found["triton_poi_new"].interval) == (None, None)
    assert other.device == DEVICE
    said = " ".join(other.assumptions)
    assert ("no measured peaks" in said, "no plan" in said) == (True, True)
