"""`weigh_launched`: takes padding back where launched calls of the whole model take longer with it.

Groups are padded for what their own modules take the device (`measure_weights`). Where the host
limits the buckets, that gains nothing, and other kernels win at other sizes: the library's, which
the host enqueues more slowly than a template. Only the whole model, served both ways, tells.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from warmup.core.counted import counted
from warmup.core.method import Launch
from warmup.core.rows import Tuned
from warmup.keys.weight import parse_weight, winner_of
from warmup.models.padding.groups import UnpaddedLinears
from warmup.models.padding.prepare import Prepared
from warmup.tuning.bucket_compiler import BucketCompiler
from warmup.tuning.host_choice import WORTH
from warmup.tuning.report import BucketResult
from warmup.tuning.weights.measure import unpadded_row
from warmup.tuning.weights.padding_rows import padding_keys


def weigh_launched(
    compiler: BucketCompiler, prepared: Prepared, results: Sequence[BucketResult]
) -> tuple[list[BucketResult], Prepared]:
    """Return *results* and *prepared* as they are after the whole model was weighed both ways.

    *results* has each bucket unpadded and padded. Where calls are to be launched one by one, and a
    call takes longer with padded weights, by more than `WORTH` in the geometric mean of the
    buckets, nothing stays padded: the weights' rows say so, and what only the padded model asked
    for, its rows of this build and the costs of its calls, is removed. Otherwise all is returned
    as it was given.

    Raises:
        TableError: the table cannot be written.
    """
    is_launched = compiler.tuner.method.launch is Launch.EAGER
    slower = slower_when_launched(results) if is_launched else None
    if slower is None or slower <= 1 + WORTH:
        return list(results), prepared
    progress = compiler.progress
    rows = progress.rows
    timings = {each.key: each.timings for each in progress.tuned}

    def unpadded(key: str) -> Tuned:
        structure, _ = parse_weight(key)
        as_is = winner_of(structure, structure.features)
        return Tuned(key, unpadded_row(rows[key], as_is), timings.get(key, ()))

    structures = {group.structure for group in prepared.padded}
    progress.put(map(unpadded, padding_keys(rows, structures)))
    as_is = [result for result in results if not result.weights_padded]
    gone = {key for result in results for key in result.keys if result.weights_padded}
    gone.difference_update(*(result.keys for result in as_is))
    progress.discard(gone & progress.keys_since(0), 0)
    progress.forget_costs(
        {compiler.call_name(result.name) for result in results if result.weights_padded}
    )
    reason = (
        f"not padded: launched one by one, calls took {slower:.2f} times as long with padded "
        f"weights (geometric mean of {counted(len(as_is), 'bucket')})"
    )
    left = tuple(UnpaddedLinears(group.names, reason) for group in prepared.padded)
    size = prepared.bytes_before
    return as_is, Prepared({}, (*prepared.left, *left), size, size)


def slower_when_launched(results: Sequence[BucketResult]) -> float | None:
    """Return a launched call's time with padded weights over that without, geometric mean.

    None where no bucket was measured both ways, as on a CPU.
    """
    as_is = {
        result.bucket: result.cost.launched_us
        for result in results
        if result.cost is not None and not result.weights_padded
    }
    ratios = [
        result.cost.launched_us / before
        for result in results
        if result.cost is not None
        and result.weights_padded
        and (before := as_is.get(result.bucket))
    ]
    return statistics.geometric_mean(ratios) if ratios else None
