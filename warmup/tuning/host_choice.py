"""`prefer_host`: other winners for a bucket that the host limits, launched one by one.

Calls that are launched one by one take what the host needs to enqueue them or what the device needs
to run them, whichever is longer. Only the sum over the bucket decides which: a kernel that is
enqueued more slowly than it runs costs nothing where the queue is full of slower ones. So winners
are chosen by device time first, and the bucket is measured. Where the host limits it, candidates
that the host enqueues faster replace winners for as long as the longer of the two sums falls. Pad
decisions come first, since a padded product has more launches and other rows than one as it is.

What the host does once for each call (guards, the frame, the wrapper's begin) is in the measured
sum, and in the time of each compiled region; it cancels in the difference of two candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from warmup.core.device import CallCost
from warmup.core.errors import BuildError
from warmup.core.method import Launch
from warmup.core.rows import Family, Row, Scope, Timing, Tuned, Winner
from warmup.core.text import counted
from warmup.measuring.selection import fixed_order, is_within_bound, ratios_of
from warmup.tuning.bucket_compiler import ServedBucket
from warmup.tuning.judge import BucketRun, Judge
from warmup.tuning.report import Judgement

WORTH: Final = 0.05  # of the bucket's time: a smaller gain is not served
_CHEAPER: Final = 0.1  # of the host's time for the winner: a smaller difference is noise


@dataclass(frozen=True, slots=True)
class _Alternative:
    """A candidate instead of the winner of ``key``: what changes in the two sums, in us."""

    key: str
    winner: Winner
    host_us: float
    device_us: float


def prefer_host(
    run: BucketRun,
    served: ServedBucket,
    judge: Judge,
    judgement: Judgement,
    fixed: Collection[str],
) -> tuple[ServedBucket, Judgement]:
    """Return the bucket served with winners for the host where that is faster, else *served*.

    *judgement* is that of *served*. Rows of this build get other winners, but not those in *fixed*;
    the bucket is served, judged and measured with them, and so are rows for kernels that it did not
    have before. They stay where its output is right and a call takes less by more than `WORTH`;
    otherwise the rows are as before. The build's observer is told what came of it.

    Raises:
        TableError: the table cannot be written.
    """
    if run.compiler.tuner.method.launch is not Launch.EAGER:
        return served, judgement
    for of_pads in (True, False):
        served, judgement = _prefer(run, served, judge, judgement, fixed, of_pads=of_pads)
    return served, judgement


def _prefer(
    run: BucketRun,
    served: ServedBucket,
    judge: Judge,
    judgement: Judgement,
    fixed: Collection[str],
    *,
    of_pads: bool,
) -> tuple[ServedBucket, Judgement]:
    """Do what `prefer_host` does, for pad decisions alone or for all other rows.

    Other pad decisions make other products: rows of this build for those that are gone go too.
    """
    cost, progress = served.cost, run.compiler.progress
    if cost is None:
        return served, judgement
    stays = {*fixed, *progress.kept}
    own = {e.key: e for e in progress.tuned if e.key in served.keys and e.key not in stays}
    before = {k: each for k, each in own.items() if _is_pad(each) == of_pads}
    chosen = choose_for_host(cost, before.values(), served.counts)
    if not chosen:
        return served, judgement
    since = len(progress.tuned)
    progress.put(with_host_winner(before[key], winner) for key, winner in chosen.items())
    noun = "pad decision" if of_pads else "winner"
    outcome = f"{run.name}: {counted(len(chosen), noun)} for the host"

    def undo() -> None:
        progress.discard(progress.keys_since(since), since)
        progress.put(before[key] for key in chosen)

    try:
        again = run.tune()
        judged = judge.judge(again.outputs)
    except BuildError as error:
        reason = str(error)
    except BaseException:  # an interrupted build leaves no winner that nobody has confirmed
        undo()
        raise
    else:
        after = again.cost or cost  # not known: no gain
        reason = f"a call took {after.launched_us:.1f} us, {cost.launched_us:.1f} us before"
        is_faster = after.launched_us < cost.launched_us * (1 - WORTH)
        if not judged.is_right:
            reason = f"the output is {judged}"
        elif is_faster:
            if of_pads:
                progress.discard(own.keys() - again.keys, 0)
            progress.observer.host_preferred(f"{outcome}: {reason}")
            return again, judged
    undo()
    progress.observer.host_preferred(f"{outcome}, tried and not kept: {reason}")
    return served, judgement


def choose_for_host(
    cost: CallCost, tuned: Iterable[Tuned], counts: Mapping[str, int]
) -> dict[str, Winner]:
    """Return the winners to try in a bucket of *cost* instead of those of *tuned*, by key.

    *counts* says how many kernels of the bucket each key answers. Empty where the device limits the
    bucket, and where the gain would be smaller than `WORTH`.
    """
    host_us, device_us = cost.host_us, cost.device_us
    if not cost.is_host_limited:
        return {}
    open_ones = [
        alternative
        for each in tuned
        for alternative in _alternatives(each, counts.get(each.key, 0))
    ]
    chosen: dict[str, Winner] = {}
    while open_ones:
        best = min(
            open_ones,
            key=lambda one: (
                max(host_us + one.host_us, device_us + one.device_us),
                device_us + one.device_us,
                fixed_order(one.winner),
            ),
        )
        if max(host_us + best.host_us, device_us + best.device_us) >= max(host_us, device_us):
            break
        host_us, device_us = host_us + best.host_us, device_us + best.device_us
        chosen[best.key] = best.winner
        open_ones = [one for one in open_ones if one.key != best.key]
    is_worth = max(host_us, device_us) < cost.launched_us * (1 - WORTH)
    return chosen if is_worth else {}


def with_host_winner(tuned: Tuned, winner: Winner) -> Tuned:
    """Return *tuned* with *winner*, chosen for the host, and the evidence for it."""
    before, is_fused = tuned.row.evidence, tuned.row.evidence.scope is Scope.FUSED
    by_winner = {timing.winner: timing for timing in tuned.timings}
    timing, other = by_winner[winner], tuned.row.winner
    time_us = _time_us(timing, is_fused=is_fused)
    assert time_us is not None
    alone_before, alone = before.bare_us or before.time_us, timing.time_us
    rates: dict[str, Any] = {
        name: None if rate is None or alone is None else float(f"{rate * alone_before / alone:.4g}")
        for name in ("tflops", "gbps", "peak_share")
        for rate in (getattr(before, name),)
    }
    evidence = replace(
        before,
        time_us=time_us,
        runner_up=str(other),
        runner_up_us=before.time_us,
        bare_us=alone if is_fused else None,
        host_us=timing.host_us,
        kernels=None,  # what was compiled for it was not kept
        spills=None,
        registers=None,
        spread=timing.spread,
        error=timing.error,
        flags=(),
        # At the last size the host decided, and not the time over the best.
        along=(*ratios_of(winner, tuned)[:-1], *((size, None) for size, _ in before.along[-1:])),
        **rates,
    )
    return replace(tuned, row=Row(winner, evidence))


def _alternatives(tuned: Tuned, count: int) -> Iterator[_Alternative]:
    """Yield each candidate that the host enqueues faster than the winner, *count* times."""
    evidence, winner = tuned.row.evidence, tuned.row.winner
    is_fused, own_us = evidence.scope is Scope.FUSED, evidence.host_us
    if not count or own_us is None or evidence.is_unstable or winner.family is Family.WEIGHT:
        return
    for timing in tuned.timings:
        time_us, host_us = _time_us(timing, is_fused=is_fused), timing.host_us
        if timing.winner == winner or timing.rejection or time_us is None or host_us is None:
            continue
        if host_us < own_us * (1 - _CHEAPER) and is_within_bound(timing.winner, tuned):
            more_us = time_us - evidence.time_us
            yield _Alternative(
                tuned.key, timing.winner, count * (host_us - own_us), count * more_us
            )


def _is_pad(tuned: Tuned) -> bool:
    return tuned.row.winner.family is Family.PAD


def _time_us(timing: Timing, *, is_fused: bool) -> float | None:
    return timing.fused_us if is_fused else timing.time_us
