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
    """Return what each of *buckets* asks for.

    Once a bucket has shown that the model without its repeated layers asks for the same keys, the
    other buckets are compiled without them, as a build does.
    """
    observer = session.compiler.progress.observer
    found: list[PlannedBucket] = []
    can_shorten = False
    for number, bucket in enumerate(buckets):
        observer.bucket_started(bucket, number, len(buckets), weights_padded=False)
        if can_shorten:
            with session.compiler.shortened() as left_out:
                found.append(_plan(session, bucket, left_out))
            continue
        whole = _plan(session, bucket)
        found.append(whole)
        if not session.all_layers and number + 1 < len(buckets):
            with session.compiler.shortened() as left_out:
                if left_out:
                    can_shorten = _keys(_plan(session, bucket, left_out)) == _keys(whole)
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


def _plan(session: Session, bucket: Bucket, left_out: int = 0) -> PlannedBucket:
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
        left_out=left_out,
        uncompiled=asked.uncompiled,
    )


def _keys(planned: PlannedBucket) -> set[str]:
    return {*planned.known, *planned.missing}
