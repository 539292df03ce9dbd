"""Whether padding weights pays: measured while a table is built.

Weights are shared by all numbers of rows, so a group has one answer: it is padded when that is
faster for some number of rows that the buckets lead to, and slower for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from warmup.buckets.bucket import Bucket
from warmup.core.errors import BuildError, OutputMismatchError, warmup_error_in
from warmup.core.events import Emitter
from warmup.core.rows import Flag, Row, Tuned, Winner
from warmup.inductor.adapter import compile_model, empty_caches
from warmup.inductor.dynamic_dims import mark_range
from warmup.keys.gemm import Dim
from warmup.keys.registry import kind_of
from warmup.keys.weight import (
    WEIGHT,
    Padding,
    Structure,
    features_of,
    padded_sizes,
    parse_weight,
    winner_of,
)
from warmup.models.outputs import worst_error
from warmup.models.padding.apply import pad, restore
from warmup.models.padding.groups import Group, Left, find_groups
from warmup.models.padding.prepare import Prepared, pad_by_rows
from warmup.table.lookup import Lookup, OnMiss
from warmup.tuning.weights.linear_module import make_standin
from warmup.tuning.weights.row_counts import rows_of

if TYPE_CHECKING:
    from warmup.tuning.progress import Progress
    from warmup.tuning.session import Session


def weigh(session: Session, buckets: Sequence[Bucket]) -> Prepared:
    """Measure what the table lacks about the weights of the model, and say what it pads then.

    The model is as it was afterwards; the caller hands what is padded to `Session.run_bucket`. A
    group whose stand-in cannot be compiled, or disagrees with eager, is left with that reason.
    """
    model, progress = session.compiler.model.module, session.compiler.progress
    found = find_groups(model)
    asked: dict[Structure, tuple[Group, set[Dim]]] = {}
    for bucket in buckets if found.groups else ():
        seen = rows_of(model, found.groups, partial(session.eager, bucket))
        lowest = bucket.at(dict(bucket.lows))
        least = (
            rows_of(model, found.groups, partial(session.eager, lowest)) if bucket.lows else seen
        )
        for group, counts in seen.items():
            asked.setdefault(group.structure, (group, set()))[1].update(
                map(Dim, least[group], counts)
            )
    failed: dict[Structure, str] = {}
    for structure, (group, rows) in asked.items():
        wanted = sorted((m for m in rows if progress.lacks(structure.key(m))), key=_most)
        try:
            if wanted:
                _weigh_group(session, group, wanted)
        except (BuildError, OutputMismatchError) as error:
            failed[structure] = str(error)
    prepared = pad_by_rows(model, progress.rows)
    restore(model)
    reasons = {group.names: failed.get(group.structure) for group in found.groups}
    left = (Left(one.names, reasons.get(one.names) or one.reason) for one in prepared.left)
    return replace(prepared, left=tuple(left))


def _most(rows: Dim) -> int:
    """Return the number of rows that a choice for *rows* is made for: their upper end."""
    assert rows.high is not None
    return rows.high


def _weigh_group(session: Session, group: Group, wanted: Iterable[Dim]) -> None:
    """Measure *group* for the numbers of rows *wanted*, and save a row for each."""
    structure, progress = group.structure, session.compiler.progress
    own, band = structure.features, session.compiler.tuner.method.near_tie
    standing = _standing(structure, progress.rows, wanted)
    size = standing if standing not in (None, own) else _quickest(session, group, wanted)
    assert size is not None
    measured = [_contest(session, group, m, (own, size), OnMiss.TUNE) for m in wanted]
    padded, as_is = winner_of(structure, size), winner_of(structure, own)
    together = [[tuned] for tuned in measured] if structure.differs_by_rows else [measured]
    for some in together:
        pays = standing != own and _pays(some, padded, as_is, band)
        chosen, other = (padded, as_is) if pays else (as_is, padded)
        for tuned in some:
            progress.save(_decided(tuned, chosen, other))
        if standing == size and not pays and not structure.differs_by_rows:
            _reverse(progress, structure, padded, as_is)  # faster before, slower for what came now


def _reverse(progress: Progress, structure: Structure, padded: Winner, as_is: Winner) -> None:
    """Save the rows of *structure* that say *padded* with *as_is* as their winner."""
    for key, row in progress.rows.items():
        if _is_about(structure, key) and row.winner == padded:
            progress.save(Tuned(key, _reversed(row, as_is, padded), ()))


def _standing(structure: Structure, rows: Mapping[str, Row], wanted: Iterable[Dim]) -> int | None:
    """Return the size that rows which are not measured now agree on, None without any.

    Where numbers of rows may differ, those that serve the weights as they are say nothing.
    """
    measured = {structure.key(m) for m in wanted}
    sizes = {
        features_of(structure, row.winner)
        for key, row in rows.items()
        if key not in measured and _is_about(structure, key)
    }
    if structure.differs_by_rows:
        sizes.discard(structure.features)
    return sizes.pop() if len(sizes) == 1 else None


def _is_about(structure: Structure, key: str) -> bool:
    return kind_of(key) is WEIGHT and parse_weight(key)[0] == structure


def _quickest(session: Session, group: Group, wanted: Iterable[Dim]) -> int:
    """Return the padded size that is fastest with the library's kernels, over all rows together."""
    structure = group.structure
    sizes = padded_sizes(structure.features, structure.dtype)
    if len(sizes) == 1:
        return sizes[0]
    totals = dict.fromkeys(sizes, 0.0)
    for m in wanted:
        tuned = _contest(session, group, m, (structure.features, *sizes), OnMiss.FALLBACK)
        times = _times(tuned)
        for size in sizes:
            totals[size] += times[winner_of(structure, size)] / min(times.values())
    return min(sizes, key=lambda size: (totals[size], size))


def _contest(
    session: Session, group: Group, m: Dim, sizes: Sequence[int], on_miss: OnMiss
) -> Tuned:
    """Return how stand-ins of *group* padded to each of *sizes* compare for *m* rows.

    Each is compiled as it would be served, for all of *m* where that is a range, and timed at its
    upper end: tuned now or from the table, or with the library's kernels alone, as *on_miss* says.

    Raises:
        BuildError: one failed.
        OutputMismatchError: one disagrees with eager.
    """
    structure, compiler = group.structure, session.compiler
    tunes = on_miss is OnMiss.TUNE
    silent = Emitter([])
    rows = compiler.progress.rows if tunes else {}
    lookup = compiler.lookup(rows, on_miss, silent) if tunes else Lookup(rows, on_miss, silent)
    calls: dict[Winner, Callable[[int], object]] = {}
    with compiler.attached(lookup, on_miss), empty_caches(), torch.no_grad():
        for size in sizes:
            calls[winner_of(structure, size)] = _call(session, group, m, size)
        key, own = structure.key(m), winner_of(structure, structure.features)
        tuned = compiler.tuner.measure_calls(key, own, calls)
    times = {} if tuned is None else _times(tuned)
    if tuned is None or len(times) < len(sizes):
        raise BuildError(f"its stand-in for {m} rows could not be timed")
    return tuned


def _call(session: Session, group: Group, m: Dim, size: int) -> Callable[[int], object]:
    torch.manual_seed(session.compiler.progress.table.policy.seed)
    standin = make_standin(group, _most(m), session.compiler.setup.device)
    try:
        expected = standin.module(*standin.inputs)
        if size != group.structure.features:
            pad(standin.module, {standin.group: Padding(size)})
        if not m.is_static and m.low > 1:  # one row would be an artifact of its own
            for given in standin.inputs:
                mark_range(given, 0, m.low, _most(m))
        compiled = compile_model(standin.module)
        found = compiled(*standin.inputs)
    except Exception as error:
        own = warmup_error_in(error)
        said = str(own) if own is not None else f"{type(error).__name__}: {error}"
        raise BuildError(f"its stand-in failed ({said.splitlines()[0][:200]})") from error
    distance, limit = worst_error(expected, found, session.accepted)
    if not distance <= limit:
        raise OutputMismatchError(
            f"padded to {size} it is {distance:.2e} away from eager (relative L2)",
            "it stays as it is",
        )
    return lambda _number: compiled(*standin.inputs)


def _times(tuned: Tuned) -> dict[Winner, float]:
    return {one.winner: one.time_us for one in tuned.timings if one.time_us is not None}


def _pays(measured: Iterable[Tuned], padded: Winner, as_is: Winner, band: float) -> bool:
    """Whether padding is faster somewhere, and slower nowhere, by more than the near-tie band.

    Where the times shook too much it is neither.
    """
    ratios = [
        1.0 if Flag.UNSTABLE in tuned.row.evidence.flags else times[padded] / times[as_is]
        for tuned in measured
        for times in (_times(tuned),)
    ]
    return min(ratios) < 1 - band and max(ratios) <= 1 + band


def _decided(tuned: Tuned, chosen: Winner, other: Winner) -> Tuned:
    """Return *tuned* with the winner *chosen* for all rows, whatever won for this number."""
    times = _times(tuned)
    before = tuned.row.evidence
    flags: tuple[Any, ...] = before.flags
    if chosen != tuned.row.winner and Flag.NEAR_TIE not in flags:
        flags = (*flags, Flag.NEAR_TIE)
    evidence = replace(
        before,
        time_us=round(times[chosen], 3),
        runner_up=str(other),
        runner_up_us=round(times[other], 3),
        flags=flags,
    )
    return replace(tuned, row=Row(chosen, evidence))


def _reversed(row: Row, as_is: Winner, padded: Winner) -> Row:
    """Return *row*, which was for *padded*, with *as_is* as its winner."""
    evidence = row.evidence
    assert evidence.library_us is not None
    turned = replace(
        evidence,
        time_us=evidence.library_us,
        runner_up=str(padded),
        runner_up_us=evidence.time_us,
        flags=tuple(dict.fromkeys((*evidence.flags, Flag.NEAR_TIE))),
    )
    return Row(as_is, turned)
