"""`measure_weights`: times each group of a model with and without padding, during a build.

A weight serves all numbers of rows, so a group is padded or not as a whole: it is padded when that
is faster for some number of rows in the buckets, and slower for none. A group of producers alone is
the exception: its rows are decided one by one (`Structure.differs_by_rows`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from warmup.core.buckets import Bucket
from warmup.core.errors import BuildError, OutputMismatchError, warmup_error_in
from warmup.core.events import Emitter
from warmup.core.rows import Flag, Row, Winner
from warmup.core.trial import Tuned
from warmup.inductor.adapter import compile_model, mark_range
from warmup.inductor.caches import empty_caches
from warmup.keys.gemm import Dim
from warmup.keys.kind import ProblemOfKey
from warmup.keys.pad import (
    WEIGHT,
    Padding,
    Structure,
    features_of,
    padded_sizes,
    parse_weight,
    winner_of,
)
from warmup.keys.question import CallsQuestion
from warmup.keys.registry import kind_of
from warmup.measuring.selection import times_of
from warmup.models.loading import DTYPES, Inputs
from warmup.models.outputs import run_wide
from warmup.models.padding import Prepared, pad_by_rows
from warmup.models.weight_groups import Group, UnpaddedLinears, find_groups, pad, restore
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.tuning.bucket_compiler import measure_regions
from warmup.tuning.session import OutputCheck, Session

if TYPE_CHECKING:
    from warmup.tuning.progress import Progress


# `LinearModule`: a small model with one group of Linears, to time its padding apart.

# A single consumer gets its input from a multiplication by this factor: inductor fuses the padding
# into its kernel, as into that of the operation in front of such a Linear in a model.
_INPUT_FACTOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class LinearModule:
    """A module with *group* alone, in eval mode, and the inputs of one call."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    group: Group


def make_linear_module(group: Group, rows: int, device: torch.device) -> LinearModule:
    """Return a module like *group* on *device*, with random weights and inputs of *rows* rows."""
    # Producers that share an activation in the model share it here. The input of a single consumer
    # comes from an operation in front, into whose kernel its padding is fused.
    structure = group.structure
    dtype = DTYPES[structure.dtype]
    biases = iter(structure.biases)
    linear = partial(nn.Linear, device=device, dtype=dtype)
    producers = {
        f"producer_{number}": linear(size, structure.features, bias=next(biases))
        for number, size in enumerate(structure.inputs)
    }
    consumers = {
        f"consumer_{number}": linear(structure.features, size, bias=next(biases))
        for number, size in enumerate(structure.outputs)
    }
    graph = fx.Graph()
    sources = group.sources if producers else (0,)
    activations = [graph.placeholder(f"activation_{i}") for i in range(max(sources) + 1)]
    sizes = dict(zip(sources, structure.inputs or (structure.features,), strict=True))
    outputs = [
        graph.call_module(name, (activations[source],))
        for name, source in zip(producers, sources, strict=False)
    ]
    if consumers:
        values = _consumer_inputs(graph, group, outputs or activations)
        outputs = [
            graph.call_module(name, (value,)) for name, value in zip(consumers, values, strict=True)
        ]
    graph.output(tuple(outputs))
    module = fx.GraphModule({**producers, **consumers}, graph)
    inputs = tuple(
        torch.randn(rows, sizes[number], device=device, dtype=dtype)
        for number in range(len(activations))
    )
    own = replace(group, producers=tuple(producers), consumers=tuple(consumers))
    return LinearModule(module.eval().requires_grad_(requires_grad=False), inputs, own)


def _consumer_inputs(graph: fx.Graph, group: Group, values: list[fx.Node]) -> list[fx.Node]:
    if group.between is None:
        return [graph.call_function(operator.mul, (values[0], _INPUT_FACTOR))]
    copies: dict[fx.Node, fx.Node] = dict(
        zip(group.between.find_nodes(op="placeholder"), values, strict=True)
    )
    inputs: Any = graph.graph_copy(group.between, copies)
    return list(inputs)


def measure_weights(session: Session, buckets: Sequence[Bucket]) -> Prepared:
    """Measure the groups whose rows the table lacks; return what the table pads with these rows."""
    # The model is unpadded afterwards. A group whose module cannot be compiled, or disagrees with
    # eager, stays unpadded for that reason.
    model, progress = session.compiler.model.module, session.compiler.progress
    groups = find_groups(model).groups
    by_structure: dict[Structure, tuple[Group, set[Dim]]] = {}
    for bucket in buckets if groups else ():
        highest = count_rows(model, groups, partial(session.eager, bucket))
        low_end = bucket.at(dict(bucket.lows))
        lowest = (
            count_rows(model, groups, partial(session.eager, low_end)) if bucket.lows else highest
        )
        for group, counts in highest.items():
            dims = by_structure.setdefault(group.structure, (group, set()))[1]
            dims.update(map(Dim, lowest[group], counts))
    failed: dict[Structure, str] = {}
    for structure, (group, dims) in by_structure.items():
        missing = sorted((m for m in dims if progress.must_tune(structure.key(m))), key=_upper_end)
        try:
            if missing:
                _measure_group(session, group, missing)
        except (BuildError, OutputMismatchError) as error:
            failed[structure] = str(error)
    prepared = pad_by_rows(model, progress.rows)
    restore(model)
    reasons = {group.names: failed.get(group.structure) for group in groups}
    left = (
        UnpaddedLinears(linears.names, reasons.get(linears.names) or linears.reason)
        for linears in prepared.left
    )
    return replace(prepared, left=tuple(left))


def _upper_end(rows: Dim) -> int:
    assert rows.high is not None
    return rows.high


def _measure_group(session: Session, group: Group, dims: Sequence[Dim]) -> None:
    structure, progress = group.structure, session.compiler.progress
    own, band = structure.features, session.compiler.tuner.method.near_tie
    decided = _decided_size(structure, progress.rows, dims)
    size = decided if decided not in (None, own) else _fastest_padded_size(session, group, dims)
    assert size is not None
    measured = [_compare_sizes(session, group, m, (own, size), tunes=True) for m in dims]
    padded, as_is = winner_of(structure, size), winner_of(structure, own)
    decisions = [[tuned] for tuned in measured] if structure.differs_by_rows else [measured]
    for results in decisions:
        pays = decided != own and _pays(results, padded, as_is, band)
        chosen, other = (padded, as_is) if pays else (as_is, padded)
        for tuned in results:
            progress.save(_with_winner(tuned, chosen, other))
        if decided == size and not pays and not structure.differs_by_rows:
            _unpad_rows(progress, structure, padded, as_is)


def _unpad_rows(progress: Progress, structure: Structure, padded: Winner, as_is: Winner) -> None:
    for key, row in progress.rows.items():
        if _is_about(structure, key) and row.winner == padded:
            progress.save(Tuned(key, unpadded_row(row, as_is, Flag.NEAR_TIE), ()))


def _decided_size(structure: Structure, rows: Mapping[str, Row], dims: Iterable[Dim]) -> int | None:
    """Return the size on which the rows outside of *dims* agree; None without such rows."""
    # It is the weights' own size where a row of *structure* is not trusted: its padding was wrong.
    # Where each number of rows is decided for itself, rows with the weights' own size do not count.
    measured = {structure.key(m) for m in dims}
    sizes = {
        features_of(structure, row.winner)
        for key, row in rows.items()
        if key not in measured and _is_about(structure, key)
    }
    if any(row.untrusted is not None and _is_about(structure, key) for key, row in rows.items()):
        return structure.features  # the output of a model was wrong with padding
    if structure.differs_by_rows:
        sizes.discard(structure.features)
    return sizes.pop() if len(sizes) == 1 else None


def _is_about(structure: Structure, key: str) -> bool:
    return kind_of(key) is WEIGHT and parse_weight(key)[0] == structure


def _fastest_padded_size(session: Session, group: Group, dims: Iterable[Dim]) -> int:
    structure = group.structure
    sizes = padded_sizes(structure.features, structure.dtype)
    if len(sizes) == 1:
        return sizes[0]
    totals = dict.fromkeys(sizes, 0.0)
    for m in dims:
        tuned = _compare_sizes(session, group, m, (structure.features, *sizes))
        times = _times(tuned)
        for size in sizes:
            totals[size] += times[winner_of(structure, size)] / min(times.values())
    return min(sizes, key=lambda size: (totals[size], size))


def _compare_sizes(
    session: Session, group: Group, m: Dim, sizes: Sequence[int], *, tunes: bool = False
) -> Tuned:
    # A module of the group is compiled for each size as for serving, for all of *m* where that is a
    # range, and timed at the upper end. With *tunes* its kernels come from the table or are tuned
    # now, else they are the library's.
    questions = session.compiler.tuner.region_questions
    questions.forget()
    tuned = _time_sizes(session, group, m, sizes, tunes=tunes)
    while questions.waiting:
        measure_regions(session.compiler)
        tuned = _time_sizes(session, group, m, sizes, tunes=tunes)
    times = {} if tuned is None else _times(tuned)
    if tuned is None or len(times) < len(sizes):
        raise BuildError(f"its module for {m} rows could not be timed")
    return tuned


def _time_sizes(
    session: Session, group: Group, m: Dim, sizes: Sequence[int], *, tunes: bool
) -> Tuned | None:
    structure, compiler = group.structure, session.compiler
    given = compiler.progress.rows if tunes else {}, OnMiss.FALLBACK, Emitter([])
    lookup = compiler.lookup(*given, measures=True) if tunes else Lookup(*given)
    calls: dict[Winner, Callable[[int], object]] = {}
    with compiler.attached(lookup), empty_caches(), torch.no_grad():
        for size in sizes:
            calls[winner_of(structure, size)] = _make_call(session, group, m, size)
        if compiler.tuner.region_questions.waiting:
            return None
        own = winner_of(structure, structure.features)
        question = CallsQuestion(ProblemOfKey(structure.key(m)), own, calls)
        return compiler.tuner.measure(question)


def _make_call(session: Session, group: Group, m: Dim, size: int) -> Callable[[int], object]:
    device = session.compiler.setup.device

    def make() -> LinearModule:
        torch.manual_seed(session.compiler.progress.table.policy.seed)
        return make_linear_module(group, _upper_end(m), device)

    linears = make()
    try:
        check = OutputCheck(
            eager=[linears.module(*linears.inputs)],
            floors=session.accepted,
            run_wide=lambda: run_wide(make().module, [Inputs(linears.inputs, {})], device),
        )
        if size != group.structure.features:
            pad(linears.module, {linears.group: Padding(size)})
        if not m.is_static and m.low > 1:  # torch compiles another artifact for a size of 1
            for tensor in linears.inputs:
                mark_range(tensor, 0, m.low, _upper_end(m))
        compiled = compile_model(linears.module)
        output = compiled(*linears.inputs)
    except Exception as error:
        own = warmup_error_in(error)
        reason = str(own) if own is not None else f"{type(error).__name__}: {error}"
        raise BuildError(f"its module failed ({reason.splitlines()[0][:200]})") from error
    checked = check.compare([output])
    if not checked.is_right:
        raise OutputMismatchError(
            f"padded to {size} its output is {checked}", "the weights stay unpadded"
        )
    return lambda _number: compiled(*linears.inputs)


def _times(tuned: Tuned) -> dict[Winner, float]:
    return {one.winner: one.time_us for one in tuned.timings if one.time_us is not None}


def _pays(measured: Iterable[Tuned], padded: Winner, as_is: Winner, band: float) -> bool:
    """Whether padding is faster for some rows and slower for none, by more than the *band*."""
    # A row that kept the weights as they are, since its times spread by more than the gain, counts
    # as a tie, and so do unstable times.
    stable = [each for each in measured if Flag.UNSTABLE not in each.row.evidence.flags]
    ratios = [(each, times[padded] / times[as_is]) for each in stable for times in (_times(each),)]
    is_faster = any(each.row.winner == padded and ratio < 1 - band for each, ratio in ratios)
    return is_faster and all(ratio <= 1 + band for _, ratio in ratios)


def _with_winner(tuned: Tuned, chosen: Winner, other: Winner) -> Tuned:
    by_winner, before = {one.winner: one for one in tuned.timings}, tuned.row.evidence
    flags: tuple[Any, ...] = before.flags
    if chosen != tuned.row.winner and Flag.NEAR_TIE not in flags:
        flags = (*flags, Flag.NEAR_TIE)
    evidence = replace(
        before,
        **times_of(by_winner[chosen]),
        runner_up=str(other),
        runner_up_us=times_of(by_winner[other])["time_us"],
        flags=flags,
    )
    return replace(tuned, row=Row(chosen, evidence))


def unpadded_row(row: Row, as_is: Winner, *flags: Flag) -> Row:
    evidence = row.evidence
    assert evidence.library_us is not None
    evidence = replace(
        evidence,
        time_us=evidence.library_us,
        runner_up=str(row.winner),
        runner_up_us=evidence.time_us,
        flags=tuple(dict.fromkeys((*evidence.flags, *flags))),
    )
    return Row(as_is, evidence)


def count_rows(
    model: nn.Module, groups: Iterable[Group], call: Callable[[], object]
) -> dict[Group, tuple[int, ...]]:
    """Return the numbers of rows of each group's activations while *call* runs *model*, ascending.

    Rows are those of the activation as a matrix. *call* should run the model uncompiled: a compiled
    graph skips the hooks of its modules. A group that was not called has no numbers.
    """
    counts: dict[Group, set[int]] = {group: set() for group in groups}

    def note(group: Group, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        activation = args[0] if args else kwargs["input"]
        counts[group].add(activation.numel() // activation.shape[-1])

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for group in counts:
            linear = model.get_submodule(group.names[0])
            hook = linear.register_forward_pre_hook(partial(note, group), with_kwargs=True)
            hooks.callback(hook.remove)
        call()
    return {group: tuple(sorted(rows)) for group, rows in counts.items()}
