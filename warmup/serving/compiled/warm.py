"""`warm_together`: compiles all buckets, their kernels in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warmup.inductor.deferred_kernels import DeferredCompile, deferring_kernels
from warmup.serving.compiled.bucket import BucketArtifact


def warm_together(calls: Mapping[BucketArtifact, Callable[[], object]]) -> None:
    """Compile each bucket with its call of *calls*, and call it.

    Dynamo traces one graph at a time, so threads would gain nothing. First every bucket is traced,
    and its kernels go to inductor's workers; then each bucket is called as soon as its own kernels
    are compiled. Parts that the first pass leaves out, such as those after a graph break, are
    compiled by that call.

    A bucket that cannot be traced ends the first pass. A bucket whose kernels cannot be compiled
    loses its artifact; the others are called.

    Raises:
        Exception: the first error, with a note that names the bucket.
    """
    pending: dict[BucketArtifact, DeferredCompile] = {}
    failed: list[Exception] = []
    with deferring_kernels() as deferred:
        for bucket, call in calls.items():
            try:
                pending[bucket] = deferred.compile(call)
            except Exception as error:  # noqa: BLE001  raised below, when the others are done
                failed.append(_with_note(error, bucket))
                break
    for bucket, kernels in pending.items():
        try:
            kernels.finish()
        except Exception as error:  # noqa: BLE001  as above
            bucket.drop_artifacts()
            failed.append(_with_note(error, bucket))
        else:
            calls[bucket]()
    if failed:
        raise failed[0]


def _with_note(error: Exception, bucket: BucketArtifact) -> Exception:
    error.add_note(f"while the bucket {bucket} was compiled")
    return error
