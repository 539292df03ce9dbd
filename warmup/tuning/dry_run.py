"""`make_plan`: which problems a build would tune, found without measuring or writing anything.

Each bucket is compiled with the library's kernels, and what inductor asks for is looked up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from warmup.buckets.bucket import Bucket
from warmup.tuning.report import BucketResult, BuildPlan, PlannedBucket

if TYPE_CHECKING:
    from warmup.tuning.earlier_builds import Pace
    from warmup.tuning.session import Session

_COMPILES: Final = 2  # a build compiles a bucket once to tune it, and once to serve it


def make_plan(
    session: Session,
    buckets: Sequence[Bucket],
    recalled: Sequence[BucketResult] | None,
    pace: Pace | None,
    *,
    pads: bool,
) -> BuildPlan:
    """Return the plan for *buckets*, which are compiled unless *recalled* has their results.

    *pace* is that of the last build on this device, and *pads* whether the build would measure
    padded weights.

    Raises as `Session.run_bucket` does.
    """
    if recalled is not None:
        planned = tuple(
            PlannedBucket(
                bucket=result.bucket,
                known=result.keys,
                missing=(),
                seconds=result.seconds,
                graphs=result.graphs,
                left_out=result.left_out,
            )
            for result in recalled
            if not result.weights_padded
        )
        return _summed(planned, pace)
    remark = "padded weights are not planned: where padding pays, a build runs each bucket again"
    return _summed(_plan_buckets(session, buckets), pace, (remark,) if pads else ())


def plan_keys(known: Sequence[str], missing: Sequence[str], pace: Pace | None) -> BuildPlan:
    """Return the plan of a build from misses: *known* keys have a row, *missing* ones none."""
    estimate, basis = _estimate(len(missing), 0, pace)
    return BuildPlan(
        buckets=(), known=tuple(known), missing=tuple(missing), estimate_s=estimate, basis=basis
    )


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


def _summed(
    buckets: Sequence[PlannedBucket], pace: Pace | None, remarks: Sequence[str] = ()
) -> BuildPlan:
    missing = tuple(dict.fromkeys(key for one in buckets for key in one.missing))
    known = tuple(dict.fromkeys(key for one in buckets for key in one.known))
    compiling = _COMPILES * sum(one.seconds for one in buckets if one.missing)
    estimate, basis = _estimate(len(missing), compiling, pace)
    return BuildPlan(
        buckets=tuple(buckets),
        known=known,
        missing=missing,
        estimate_s=estimate,
        basis=basis,
        remarks=tuple(remarks),
    )


def _estimate(missing: int, compiling_s: float, pace: Pace | None) -> tuple[float | None, str]:
    """Return the expected seconds to tune *missing* problems, and what they are based on."""
    if not missing:
        return 0.0, "nothing to tune"
    if pace is None:
        besides = f"; compiling alone takes about {compiling_s:.0f} s" if compiling_s else ""
        return None, f"no build on this device has left its pace here yet{besides}"
    each = pace.seconds / pace.problems
    return missing * each, (
        f"{missing} at {each:.1f} s each, compiling included: the pace of the last build on this "
        f"device, {pace.problems} in {pace.seconds:.0f} s on {pace.day}"
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
    )


def _keys(planned: PlannedBucket) -> set[str]:
    return {*planned.known, *planned.missing}
