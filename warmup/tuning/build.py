"""`build`: tunes every bucket of a model ahead of time, and writes the table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.core.buckets import Bucket, ShapePolicy, parse_buckets, parse_inputs, with_ranges
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.events import Uncompiled, selections
from warmup.core.method import COMPILE_MODES, Search
from warmup.core.phases import BuildStage
from warmup.table.codec import digest_of
from warmup.table.schema import DEFAULT_MODE, PolicyOptions, Table
from warmup.table.store import read
from warmup.tuning.pack_bundle import input_options, pack_if_asked
from warmup.tuning.progress import Progress, Revisit, SearchBudget, parse_budget, spend_budget
from warmup.tuning.report import BucketResult, BuildReport, Observer, open_earlier
from warmup.tuning.setup import (
    check_out,
    find_setup,
    open_table,
    out_path,
    seconds_to_wait,
    watcher_of,
)

if TYPE_CHECKING:
    from warmup.models.padding import Prepared
    from warmup.tuning.session import Session


UNSTABLE: Final = "unstable"


def revisit_for(
    table: Table, budget: SearchBudget, *, retry: str | None = None, force: bool = False
) -> Revisit:
    """Return which rows of *table* a build measures again: all, or with *retry* unstable ones.

    Raises:
        SettingsError: *retry* is another word or cannot be combined with *force* or a budget, or an
            unstable row was searched further than this build would search.
    """
    if retry is None:
        return Revisit(all_rows=force, search=budget.first_pass)
    if retry != UNSTABLE:
        raise SettingsError(f"--retry {retry} is unknown", f"write --retry {UNSTABLE}")
    if force or budget.seconds is not None:
        other = "--retry all" if force else "--budget"
        raise SettingsError(f"--retry {retry} and {other} contradict each other", "give one")
    unstable = {key: row for key, row in table.rows.items() if row.evidence.is_unstable}
    for key, row in unstable.items():
        if budget.search.is_narrower_than(row.evidence.search):
            raise SettingsError(
                f"--retry {retry}: {key} was searched further than --search {budget.search}",
                f"add --search {row.evidence.search}",
            )
    return Revisit(retried=frozenset(unstable), search=budget.search)


def build(
    model: str,
    *,
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    mode: str = DEFAULT_MODE,
    backends: str | None = None,
    out: str | Path | None = None,
    tolerance: float | None = None,
    launch: str | None = None,
    l2: str | None = None,
    fused_top_k: int | None = None,
    search: str = Search.DEFAULT,
    budget: str | float | None = None,
    pad_weights: bool | None = None,
    policy: str = ShapePolicy.EXACT,
    bundle: bool = False,
    bundle_graphs: str | None = None,
    freezing: bool | None = None,
    all_layers: bool = False,
    force: bool = False,
    retry: str | None = None,
    wait_for_quiet: float | None = None,
    rows_from: Sequence[str | Path] = (),
    dry_run: bool = False,
    observer: Observer | None = None,
) -> BuildReport:
    """Tune the kernels of *model* for every bucket, and write the winners to a table.

    Arguments have the form of the command line's options; *dims* may be several texts, whose
    buckets are built one after the other. Inputs that neither *inputs* nor the model's file names
    are inferred from its forward and weights, and the table says so.

    An existing table is completed: only problems without a row are tuned, and those that were
    searched less far than *search*; *force* tunes all again. With a *budget*, in seconds or as text
    such as ``20m``, each problem is searched by ``default`` first, then those that may gain most by
    *search*, until so much time has passed since the start.

    With *retry*, ``unstable``, only rows of an existing table whose times do not carry a decision
    are measured, and such a row is replaced by better evidence only. Before a measurement the build
    waits while other processes keep the machine busy, *wait_for_quiet* seconds in all (None:
    ``WARMUP_WAIT_FOR_QUIET``, else 30).

    Each finished problem is on disk before the next one starts. In each run of a bucket the outputs
    of the model, compiled from the table alone, are judged (`warmup.tuning.judge`). A row that
    makes them wrong is marked as not trusted: it stays in the table, is not served, and the next
    build measures its problem again without that winner. Where layers repeat, and the first bucket
    shows that the model without the repeated layers asks for the same rows, other buckets are run
    without them, unless *all_layers*. A bucket serves its own sizes alone; with the *policy*
    ``range`` one graph also serves the sizes down to the previous bucket, and is also judged at the
    lower end and in the middle.

    With *pad_weights* (None: on a GPU) weights with unaligned sizes are measured unpadded and
    padded. Where padding pays, each bucket is run again with padded weights, so that the table has
    the rows of the model with and without padding. With *bundle* the kernels that serving compiles
    are written beside the table, see `warmup.tuning.pack_bundle`; with *bundle_graphs*, the mode of
    the server's torch.compile, its graphs too.

    On a CPU the model is compiled with frozen weights, since inductor's C++ template competes for
    those alone. With *freezing* False it is compiled as a program that freezes nothing compiles it,
    and the table gets the rows that such a program asks for. Both builds complete one table.

    A problem that the table lacks takes the row of a table of *rows_from* where it fits, instead of
    being measured: see `warmup.tuning.report`. With *force* or *retry* nothing is taken.

    With *dry_run* the report has a plan instead of results: the problems of each bucket, those with
    a row and those to tune. Each bucket is compiled for it; nothing is measured or written.

    Raises:
        SettingsError, ModelError: the arguments or the model cannot be used; nothing was written.
        TableError: the table exists and is damaged, belongs to another device, runtime or policy,
            or cannot be written; or one of *rows_from* cannot be read.
        OutputMismatchError: a bucket's output is wrong, also without the rows that may be to blame.
        NothingRecordedError: no bucket asked for a GEMM choice.
        BundleError: the bundle could not be made; the table on disk is complete.
    """
    started = time.monotonic()
    search_budget = parse_budget(search, budget)
    _check_words(policy, bundle_graphs)
    buckets = parse_buckets(seqlens, dims)
    if policy == ShapePolicy.RANGE:
        buckets = with_ranges(buckets)
    specs = parse_inputs(inputs)
    from warmup.models.inputs import resolve_inputs
    from warmup.models.loading import load_model, parse_cast
    from warmup.tuning.bucket_compiler import BucketCompiler
    from warmup.tuning.session import Session, make_plan
    from warmup.tuning.tuner import make_tuner

    asked = PolicyOptions(
        mode=mode,
        backends=backends,
        tolerance=tolerance,
        launch=launch,
        l2=l2,
        fused_top_k=fused_top_k,
    )
    if out is not None and not dry_run:
        check_out(Path(out))
    setup = find_setup(device, asked)
    cast = parse_cast(dtype)
    watcher = watcher_of(observer, setup)
    with make_tuner(setup.policy, setup.device, started) as tuner:
        loaded = load_model(model)
        wants_padding = setup.device.type != "cpu" if pad_weights is None else pad_weights
        path = out_path(out, setup.runtime, loaded, cast)
        resolved = resolve_inputs(loaded, specs, buckets, cast)
        watcher.model_loaded(resolved.assumptions)
        table, replaces = open_table(
            path, setup, resolved.assumptions, force=force, is_read_only=dry_run
        )
        earlier = open_earlier(
            rows_from,
            table,
            setup.inductor.template_sources,
            measures_again=force or retry is not None,
            is_dry=dry_run,
        )
        progress = Progress(
            path=path,
            table=table,
            replaces=replaces,
            observer=watcher,
            can_search=setup.can_search,
            given_up=tuner.rows.not_tuned,
            measured_peaks=tuner.bounds.peaks,
            revisit=revisit_for(table, search_budget, retry=retry, force=force),
            earlier=earlier,
        )
        tuner.rows.only, tuner.region_questions.is_used = progress.revisit.retried, True
        tuner.watch.start(seconds_to_wait(wait_for_quiet), watcher.waiting_started)
        compiler = BucketCompiler(
            setup=setup,
            model=loaded,
            progress=progress,
            tuner=tuner,
            measure_cost=tuner.cost_of,
            freezes=freezing is not False,
        )
        session = Session(
            compiler=compiler, specs=resolved.specs, dtype=cast, all_layers=all_layers
        )
        watcher.buckets_counted(buckets)
        kinds = {tuple(each.shape) for each in loaded.module.parameters() if each.dim() > 1}
        watcher.problems_expected(len(kinds))
        if dry_run:
            plan = make_plan(session, buckets, pads=wants_padding)
            return BuildReport(
                path,
                table,
                digest_of(table),
                (),
                (),
                time.monotonic() - started,
                plan=plan,
                rows_from=earlier.used() if earlier else (),
            )
        watcher.device_looked_at(tuner.watch.remarks())
        with progress:
            results, prepared = _tune(session, buckets, search_budget, started, pads=wants_padding)
            progress.flush()
        machine, stages = tuner.watch.state(), tuner.clock.take()
        watcher.device_looked_at((*machine.complaints, *machine.notes))
    _check_asked(results, retry, tuner.rows.not_tuned, freezing=freezing)
    words = input_options(seqlens=seqlens, dims=dims, inputs=inputs, dtype=dtype, policy=policy)
    packed = pack_if_asked(
        *(path, model, setup.runtime),
        [*words, f"--device={setup.device}", f"--{'no-' * (freezing is False)}freezing"],
        watcher.packing_started,
        serves=bundle,
        graphs_for=bundle_graphs,
    )
    final = read(path)
    return BuildReport(
        path,
        final,
        digest_of(final),
        tuple(results),
        progress.measured,
        time.monotonic() - started,
        not_tuned=dict(tuner.rows.not_tuned),
        not_fused=dict(tuner.rows.not_fused),
        prepared=prepared,
        peaks=tuner.bounds.known,
        bundle=packed,
        distrusted=dict(progress.distrusted),
        machine=machine,
        retried=progress.revisit.retried,
        kept=dict(progress.kept),
        stages=stages,
        rows_from=earlier.used(progress.keys_since(0)) if earlier else (),
    )


def _tune(
    session: Session,
    buckets: Sequence[Bucket],
    budget: SearchBudget,
    started: float,
    *,
    pads: bool,
) -> tuple[list[BucketResult], Prepared | None]:
    """Run each of *buckets*, with padded weights too where *pads* and that pays."""
    from warmup.tuning.weights import measure_weights, weigh_launched

    compiler, prepared = session.compiler, None
    progress = compiler.progress

    def run_all() -> list[BucketResult]:
        padded = None if prepared is None else prepared.padded
        results: list[BucketResult] = []
        for number, bucket in enumerate(buckets):
            if not progress.is_done:
                results.append(session.run_bucket(bucket, number, len(buckets), padded))
        return results

    results = run_all()
    if pads and not progress.is_done:
        with compiler.tuner.clock.phase(BuildStage.WEIGHTS):
            prepared = measure_weights(session, buckets)
    if prepared is not None and prepared.padded:
        results += run_all()
        results, prepared = weigh_launched(compiler, prepared, results)
    if budget.seconds is not None:

        def run_again(before: BucketResult, number: int, total: int) -> BucketResult:
            padded = prepared.padded if prepared is not None and before.weights_padded else None
            return session.run_bucket(before.bucket, number, total, padded)

        results = list(spend_budget(progress, run_again, results, budget, started))
    return results, prepared


def _check_asked(
    results: Sequence[BucketResult],
    retry: str | None,
    not_tuned: Mapping[str, str],
    *,
    freezing: bool | None,
) -> None:
    """Raise a NothingRecordedError where no bucket asked anything; a *retry* may find nothing."""
    if retry is not None or any(result.keys for result in results):
        return
    for key, reason in not_tuned.items():
        raise NothingRecordedError(f"no row could be measured in any bucket: {key}", reason)
    frames = dict.fromkeys(frame for result in results for frame in result.uncompiled.frames)
    if frames:
        left = Uncompiled(tuple(frames), max(result.uncompiled.matmuls for result in results))
        raise NothingRecordedError(
            f"the model asked inductor for no GEMM choice in any bucket, with {left}",
            "change what torch cannot trace, or compile the parts around it by themselves",
        )
    if not any(result.graphs for result in results):
        raise NothingRecordedError(
            "torch.compile made no graph of the model in any bucket: it runs uncompiled",
            "is it disabled for torch.compile?",
        )
    if uncovered := selections(dict.fromkeys(site for each in results for site in each.uncovered)):
        raise NothingRecordedError.of_uncovered(uncovered)
    raise NothingRecordedError(
        "the model asked inductor for no GEMM choice in any bucket",
        "a CPU's linears have several candidates only where weights are frozen: omit --no-freezing"
        if freezing is False
        else "it has no mm-like op with several candidates under these backends on this device",
    )


def _check_words(policy: str, bundle_graphs: str | None) -> None:
    """Raise a SettingsError for a policy or a mode that is unknown."""
    if policy not in set(ShapePolicy):
        raise SettingsError(f"policy={policy!r}", f"use one of {', '.join(ShapePolicy)}")
    if bundle_graphs is not None and bundle_graphs not in COMPILE_MODES:
        raise SettingsError(
            f"bundle_graphs={bundle_graphs!r} is not a mode",
            f"use one of {', '.join(COMPILE_MODES)}",
        )
