"""Compiling all buckets at once, as far as inductor allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warmup.inductor.deferred_kernels import DeferredCompile, deferring_kernels
from warmup.serving.compiled.bucket import BucketArtifact


def warm_together(calls: Mapping[BucketArtifact, Callable[[], object]]) -> None:
    """Compile each bucket for its call, and call it.

    dynamo compiles one graph at a time, so threads would gain nothing. What overlaps is waiting:
    first every bucket is traced, and its kernels are left to inductor's workers; then each bucket
    is called as soon as its own kernels are there. What the first pass leaves out, such as the
    parts after a graph break, is compiled by that call.

    A bucket that cannot be traced ends the first pass. One whose kernels cannot be compiled is
    forgotten; the others are called.

    Raises:
        Exception: the first that was raised, with a note that names the bucket.
    """
    pending: dict[BucketArtifact, DeferredCompile] = {}
    failed: list[Exception] = []
    with deferring_kernels() as compiler:
        for bucket, call in calls.items():
            try:
                pending[bucket] = compiler.compile(call)
            except Exception as error:  # noqa: BLE001  raised below, when the others are done
                failed.append(_named(error, bucket))
                break
    for bucket, each in pending.items():
        try:
            each.finish()
        except Exception as error:  # noqa: BLE001  as above
            bucket.forget()
            failed.append(_named(error, bucket))
        else:
            calls[bucket]()
    if failed:
        raise failed[0]


def _named(error: Exception, bucket: BucketArtifact) -> Exception:
    error.add_note(f"while the bucket {bucket} was compiled")
    return error
