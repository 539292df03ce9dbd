"""One bucket, compiled until all that it asks has a row, then from rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warmup.core.errors import BuildError, MissError, WarmupError, warmup_error_in
from warmup.core.events import Emitter, Event, EventName, logger
from warmup.table.lookup import OnMiss

if TYPE_CHECKING:
    from warmup.models.loading import Inputs
    from warmup.tuning.session import Build


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one compile asked for, and what it gave.

    ``keys`` are those with a row, each once, in graph order; ``outputs`` has one for each call, and
    ``uncovered`` counts, by site, what was measured without a row. ``stands_for_all``: the model
    without what repeats in it asked for the same rows.
    """

    keys: tuple[str, ...]
    outputs: list[Any]
    uncovered: Mapping[str, int]
    stands_for_all: bool = False


def tune(build: Build, every: Sequence[Inputs], name: str, since: int) -> Served:
    """Tune what has no row in the bucket *name*; return what its model gives from rows alone.

    It is called with each of *every*; what the first call compiled serves the others. Where layers
    repeat, the model with fewer of them is tuned first, and the whole one only when that left a
    question open. Rows of fewer layers, tuned here or from number *since* of the build on, that the
    whole one does not ask for are taken back.

    Raises:
        ModelError: the sizes in *every* cannot share one artifact.
        BuildError: compiling or a call failed otherwise; an error of warmup's own but a miss is
            raised as it is.
    """
    shorter = _tune_without_repeats(build, every[:1], name)
    fresh = {tuned.key for tuned in build.tuned[since:]}
    served = _serve(build, every, name) if shorter is not None else None
    if served is None:
        served = tune_as_is(build, every, name)
    if unasked := fresh.difference(served.keys):
        logger.info("bucket %s: rows for fewer layers alone, removed: %d", name, len(unasked))
    build.take_back(unasked, since)
    build.reopen(unasked)
    stands_for_all = shorter is not None and set(shorter.keys) == set(served.keys)
    return replace(served, stands_for_all=stands_for_all)


def tune_as_is(build: Build, every: Sequence[Inputs], name: str) -> Served:
    """Tune what has no row, and return what comes of rows alone, of the model with what it has now.

    Raises as `tune` does.
    """
    before = len(build.tuned)
    served = _compile(build, every, name, OnMiss.TUNE)
    if len(build.tuned) > before:  # else that run was served from rows alone already
        served = _compile(build, every, name, OnMiss.STRICT)
    return served


def _tune_without_repeats(build: Build, every: Sequence[Inputs], name: str) -> Served | None:
    """Tune the model without what repeats in it; None when nothing does, or the rest fails."""
    with build.shortened() as left_out:
        if left_out:
            try:
                return _compile(build, every, name, OnMiss.TUNE)
            except BuildError as error:  # a forward may count on all of its layers
                logger.info("not tuned with %d layers fewer: %s", left_out, error)
    return None


def _serve(build: Build, every: Sequence[Inputs], name: str) -> Served | None:
    """Return what the model asks for and gives from rows alone; None when a row is missing."""
    try:
        return _compile(build, every, name, OnMiss.STRICT)
    except BuildError as error:
        missed = error.__cause__ and warmup_error_in(error.__cause__)
        if not isinstance(missed, MissError):
            raise
        logger.info("bucket %s: not all was tuned with fewer layers: %s", name, missed)
    return None


def _compile(build: Build, every: Sequence[Inputs], name: str, on_miss: OnMiss) -> Served:
    """Compile the model with empty caches and call it; return what it asked for and gave."""
    import torch

    from warmup.inductor.adapter import compile_model, empty_caches

    asked: dict[str, None] = {}
    uncovered: Counter[str] = Counter()

    def note(event: Event) -> None:
        if event.name in (EventName.HIT, EventName.TUNED):
            asked[str(event.fields["key"])] = None
        elif event.name is EventName.UNCOVERED:
            uncovered[str(event.fields["site"])] += 1

    rows = build.table.rows
    if on_miss is OnMiss.STRICT:  # what could not be tuned is served by the library's kernel
        rows = {**build.tuner.library_rows, **rows}
    lookup = build.lookup(rows, on_miss, Emitter([note]))
    failure: Exception | None = None
    with build.attached(lookup, on_miss), empty_caches():
        try:
            compiled = compile_model(build.model.module)
            outputs = [compiled(*every[0].args, **every[0].kwargs)]
            with torch.compiler.set_stance("fail_on_recompile"):
                outputs += [compiled(*one.args, **one.kwargs) for one in every[1:]]
        except Exception as error:  # noqa: BLE001  raised below: over it the caches would stay
            failure = error
    if failure is not None:
        try:
            raise _told(failure, name) from failure
        finally:
            del failure  # its frames hold the model's tensors, and this one it
    keys = tuple(key for key in asked if key in build.table.rows)
    return Served(keys=keys, outputs=outputs, uncovered=dict(uncovered))


def _told(error: Exception, name: str) -> WarmupError:
    """Return what to raise over an *error* of a compile: warmup's own, but for a miss."""
    from warmup.inductor.artifacts import range_error

    own = warmup_error_in(error)
    if own is not None and not isinstance(own, MissError):
        return own
    if (narrower := range_error(error, name)) is not None:
        return narrower
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return BuildError(f"bucket {name}: compiling failed ({reason})")
