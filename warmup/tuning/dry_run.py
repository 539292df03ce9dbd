"""`make_plan`: which problems a build would tune, found without measuring or writing anything.

Each bucket is compiled with the library's kernels, and what inductor asks for is looked up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmup.buckets.bucket import Bucket
from warmup.tuning.report import BuildPlan, PlannedBucket

if TYPE_CHECKING:
    from warmup.tuning.session import Session


def make_plan(
    session: Session,
    buckets: Sequence[Bucket],
    *,
    pads: bool,
) -> BuildPlan:
    """Return the plan for *buckets*; with *pads* the build would measure padded weights.

    Raises as `Session.run_bucket` does.
    """
    remark = "padded weights are not planned: where padding pays, a build runs each bucket again"
    return _summed(_plan_buckets(session, buckets), (remark,) if pads else ())


def plan_keys(known: Sequence[str], missing: Sequence[str]) -> BuildPlan:
    """Return the plan of a build from misses: *known* keys have a row, *missing* ones none."""
    return BuildPlan(buckets=(), known=tuple(known), missing=tuple(missing))


def _plan_buckets(session: Session, buckets: Sequence[Bucket]) -> tuple[PlannedBucket, ...]:
    """Return what each of *buckets* asks for."""
    observer = session.compiler.progress.observer
    found: list[PlannedBucket] = []
    for number, bucket in enumerate(buckets):
        observer.bucket_started(bucket, number, len(buckets), weights_padded=False)
        found.append(_plan(session, bucket))
    return tuple(found)


def _summed(buckets: Sequence[PlannedBucket], remarks: Sequence[str] = ()) -> BuildPlan:
    missing = tuple(dict.fromkeys(key for one in buckets for key in one.missing))
    known = tuple(dict.fromkeys(key for one in buckets for key in one.known))
    return BuildPlan(
        buckets=tuple(buckets),
        known=known,
        missing=missing,
        remarks=tuple(remarks),
    )


def _plan(session: Session, bucket: Bucket) -> PlannedBucket:
    import torch

    started = time.monotonic()
    calls = session.calls(bucket)
    with torch.no_grad():
        asked = session.compiler.ask(calls, str(bucket))
    return PlannedBucket(
        bucket=bucket,
        known=asked.keys,
        missing=asked.missing,
        seconds=time.monotonic() - started,
        graphs=asked.graphs,
    )
