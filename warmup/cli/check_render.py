"""The report of a check: lines for stdout and stderr, and the JSON document."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from warmup.cli.common_options import is_verbose
from warmup.cli.output import PHASES_PAGE, spell_phases, versions
from warmup.core.counted import counted
from warmup.core.phases import document_of
from warmup.core.runtime import Runtime
from warmup.serving.check import CheckReport, PrimedBucket
from warmup.serving.unpack_bundle import UnpackedBundle


def spell_file(report: CheckReport) -> Iterator[str]:
    """Yield the digest and the rows of the table, its machine and this one; none without a table.

    The words before the column of values are fixed, for whoever reads the lines by program.
    """
    if report.table is None:
        return
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.rows.items()))
    yield f"digest    {report.digest}"
    yield f"rows      {sum(report.rows.values())}{f' ({kinds})' if kinds else ''}"
    yield f"unstable  {len(report.unstable)}"
    yield f"tuned on  {_spell_runtime(report.table.provenance.runtime)}"
    yield f"here      {_spell_runtime(report.here) if report.here else 'unknown'}"


def spell_bucket(primed: PrimedBucket) -> str:
    """Return the counts of one bucket that was compiled and called."""
    return (
        f"bucket    {primed.bucket}: {counted(primed.hits, 'hit')}, "
        f"{counted(len(primed.misses), 'miss')}, "
        f"{len(primed.uncovered)} uncovered, {primed.cached} from cache, {primed.seconds:.1f} s"
    )


def spell_outcome(report: CheckReport) -> Iterator[str]:
    """Yield the number of primed buckets, the bundle, and the state with its exit code."""
    if report.table is None:
        return
    if report.buckets:
        if is_verbose():
            yield f"start     what it was made of, in seconds ({PHASES_PAGE}):"
            parts = {"all": report.phases, "before": report.phases_before}
            parts |= {str(primed.bucket): primed.phases for primed in report.buckets}
            for part, seconds in parts.items():
                yield from spell_phases(part, seconds, " " * 10)
        else:
            yield f"start     {sum(report.phases.values()):.1f} s; -v says what they were made of"
        ready = sum(bucket.problem is None for bucket in report.buckets)
        yield f"primed    {ready} of {len(report.buckets)} buckets"
    if report.bundle is not None and report.bundle.refused is None:
        compiled = len(report.bundle.compiled_besides())
        yield f"bundle    {report.bundle}; {compiled} kernels compiled that it lacks"
    yield f"state     {report.state} ({report.state.exit_code})"


def stderr_lines(report: CheckReport) -> Iterator[str]:
    """Yield a line for each problem and each remark, under a launcher with the rank before it."""
    rank = os.environ.get("RANK")
    prefix = "" if rank is None else f"rank {rank}: "
    for line in _problems(report):
        yield f"{prefix}error: {' '.join(line.split())}"
    for line in (*report.remarks, *_mismatches(report, is_hard=False)):
        yield f"{prefix}warning: {' '.join(line.split())}"


def document(report: CheckReport, groups_padded: int) -> dict[str, Any]:
    """Return *report* as JSON values; docs/reference/cli.md#check has each."""
    built = report.table.provenance.runtime if report.table else None
    return {
        "path": str(report.path),
        "state": report.state.value,
        "exit_code": report.state.exit_code,
        "digest": report.digest,
        "rank": os.environ.get("RANK"),
        "rows": dict(report.rows),
        "unstable": list(report.unstable),
        "tuned_on": asdict(built) if built else None,
        "here": asdict(report.here) if report.here else None,
        "problems": _problems(report),
        "mismatches": [
            {"field": m.field, "expected": m.expected, "found": m.found, "hard": m.is_hard}
            for m in report.mismatches
        ],
        "remarks": list(report.remarks),
        "groups_padded": groups_padded,
        "phases": document_of(report.phases),
        "phases_before": document_of(report.phases_before),
        "bundle": None if report.bundle is None else _document_of_bundle(report.bundle),
        "buckets": [
            {
                "bucket": dict(primed.bucket.sizes),
                "from": dict(primed.bucket.lows),
                "hits": primed.hits,
                "from_cache": primed.cached,
                "cached_misses": primed.cached_misses,
                "misses": list(primed.misses),
                "uncovered": list(primed.uncovered),
                "seconds": round(primed.seconds, 3),
                "phases": document_of(primed.phases),
                "problem": primed.problem,
            }
            for primed in report.buckets
        ],
    }


def _document_of_bundle(bundle: UnpackedBundle) -> dict[str, Any]:
    return {
        "path": str(bundle.path),
        "refused": bundle.refused,
        "kernels": bundle.kernels,
        "graphs": bundle.graphs,
        "placed": bundle.placed,
        "compiled": list(bundle.compiled_besides()),
    }


def _problems(report: CheckReport) -> list[str]:
    return [*report.problems, *_mismatches(report, is_hard=True)]


def _mismatches(report: CheckReport, *, is_hard: bool) -> Iterator[str]:
    for each in report.mismatches:
        if each.is_hard is is_hard:
            yield f"{each.field}: expected {each.expected}, found {each.found}"


def _spell_runtime(runtime: Runtime) -> str:
    """Return a machine in one line: device, its size, and the versions of what ran on it."""
    device = runtime.device
    size = (
        f"{device.threads} threads"
        if device.type == "cpu"
        else f"{device.sm_count} SMs, {device.memory_gib} GiB, MIG {device.mig or 'off'}"
    )
    others = "".join(
        f", {part} {getattr(runtime, part)}"
        for part in ("cuda", "driver", "cublas")
        if getattr(runtime, part) is not None
    )
    return (
        f"{device.name or 'unnamed'} ({device.vendor} {device.arch}, {size}), "
        f"{versions(runtime.torch, runtime.triton)}{others}"
    )
