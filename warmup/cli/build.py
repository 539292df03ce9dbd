"""`warmup build`: tune every bucket of a model, or the misses of an audit."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.build_render import UNDECIDED, is_undecided, refuse_beside, unstable_rows
from warmup.cli.output import complain, fold, grid, print_report, say, terminal_width
from warmup.cli.streams import EXIT_FOUND, EXIT_UNDECIDED, interruptible
from warmup.cli.tables import ROW_HEAD, row_cells
from warmup.core.buckets import ShapePolicy
from warmup.core.events import in_brackets
from warmup.core.method import Search
from warmup.core.rows import Row
from warmup.core.text import counted, printable
from warmup.keys.kind import natural_order
from warmup.keys.registry import kind_of

if TYPE_CHECKING:
    from warmup.serving.run import RunReport
    from warmup.tuning.program import ProgramBuild


_CONFIG_MAP_BYTES: Final = 2**20


def build(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Instead of --model: a program to run once."),
    ] = None,
    *,
    model: options.OptionalModel = None,
    problems: Annotated[
        Path | None,
        typer.Option(help="Instead of --model: the misses from `warmup audit --misses-out`."),
    ] = None,
    shard: options.ShardOption = None,
    after: Annotated[
        bool,
        typer.Option(
            "--after", help="Tune what the program asks when it has ended, not as it is asked."
        ),
    ] = False,
    seqlens: options.Seqlens = None,
    dims: options.Dims = None,
    inputs: options.InputsOption = None,
    device: options.DeviceOption = "auto",
    devices: options.DevicesOption = None,
    problem_limit: options.ProblemLimit = "30m",
    cluster: options.ClusterOption = None,
    dtype: options.Dtype = None,
    mode: Annotated[
        str,
        typer.Option(
            help="The options of the compile: max-autotune-gemm, max-autotune or "
            "max-autotune-no-cudagraphs. All are searched alike."
        ),
    ] = "max-autotune-gemm",
    backends: Annotated[
        str | None,
        typer.Option(help="Inductor's GEMM backends; default ATEN,CPP or, on a GPU, ATEN,TRITON."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The table to write; default tables/DEVICE/MODEL.DTYPE.json."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Relative L2 error that is always accepted; default by dtype."
        ),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            help=f"{options.LAUNCH_HELP} Default eager; for --mode max-autotune on a GPU cudagraph."
        ),
    ] = None,
    l2: Annotated[
        str | None, typer.Option(help=f"{options.L2_HELP} Default cold, on a CPU warm.")
    ] = None,
    fused_top_k: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Candidates, beside the library's, that are timed with their epilogue; default 4.",
        ),
    ] = None,
    search: Annotated[
        Search,
        typer.Option(help="Candidates added to inductor's list: few, more or every tile."),
    ] = Search.DEFAULT,
    budget: Annotated[
        str | None, typer.Option(help="Time limit for a wider --search, such as 20m.")
    ] = None,
    pad_weights: Annotated[
        bool | None, typer.Option(help="Tune padded weights too where that pays; default on a GPU.")
    ] = None,
    policy: options.PolicyOption = ShapePolicy.EXACT,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Write a bundle (compiled kernels) beside the table.")
    ] = False,
    bundle_graphs: Annotated[
        str | None,
        typer.Option(help="Write a bundle with the graphs of a server in this torch.compile mode."),
    ] = None,
    freezing: Annotated[
        bool | None,
        typer.Option(
            help="On a CPU: compile with frozen weights. Default yes for --model; for a program as "
            "it does itself, or WARMUP_FREEZING."
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Tune problems again that the table has.")] = False,
    retry: Annotated[
        str | None,
        typer.Option(help="unstable: measure only the rows whose times do not carry a decision."),
    ] = None,
    wait_for_quiet: options.WaitForQuiet = None,
    rows_from: options.RowsFrom = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Compile and say what would be tuned; measure and write nothing.",
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Tune every bucket of a model and write the winners to a table.

    With --problems, tune the misses that `warmup audit` found, without the model. With a command
    after --, run that program once and tune its decisions, in each of its processes.
    """
    from warmup.cli.build_render import (
        MEASURE_ALL,
        UNDECIDED,
        chosen_build,
        document,
        document_of_plan,
        is_empty_share,
        is_undecided,
        on_cluster,
        on_devices,
        spell,
        spell_plan,
    )
    from warmup.cli.progress import BuildProgress

    of_model: dict[str, Any] = {
        "seqlens": seqlens,
        "dims": dims,
        "inputs": tuple(inputs or ()),
        "dtype": dtype,
        "budget": budget,
        "bundle": bundle,
        "bundle_graphs": bundle_graphs,
        "retry": retry,
        "freezing": freezing,
    }
    shared: dict[str, Any] = {
        "device": device,
        "mode": mode,
        "backends": backends,
        "tolerance": tolerance,
        "launch": launch,
        "l2": l2,
        "fused_top_k": fused_top_k,
        "search": search,
        "force": force,
        "wait_for_quiet": wait_for_quiet,
        "rows_from": tuple(rows_from or ()),
        "dry_run": dry_run,
        "shard": shard,
    }
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    if command:
        refused = of_model | {"model": model, "problems": problems, "pad_weights": pad_weights}
        refused |= {"shard": shared.pop("shard"), "devices": devices, "cluster": cluster}
        shared["freezing"] = refused.pop("freezing")
        refused |= {"force": force, "dry_run": dry_run, "policy": policy.value}
        refused |= {"rows_from": shared.pop("rows_from")}
        build_program(command, out, refused, shared, after=after, as_json=as_json)
        return
    if after:
        raise typer.BadParameter("--after needs a program: -- python serve.py")
    if is_empty_share(problems, shard):
        return
    if model is not None:
        of_model |= {"pad_weights": pad_weights, "policy": policy}
    run = chosen_build(model, problems, out=out, of_model=of_model, shared=shared, cluster=cluster)
    spread = partial(on_cluster, cluster=cluster, budget=budget) if cluster else on_devices
    run = spread(run, devices=devices, limit=problem_limit)
    with BuildProgress() as progress, interruptible(progress.interrupted):
        report = run(observer=progress)
    if report.plan is not None:
        print_report(report, spell_plan, document_of_plan, as_json=as_json)
        return
    shown = spell if model is not None else partial(spell, remedy=MEASURE_ALL)
    print_report(report, shown, document, as_json=as_json)
    size = report.path.stat().st_size
    if size > _CONFIG_MAP_BYTES and not as_json:
        say(f"note: {report.path} has {size} bytes, more than a Kubernetes ConfigMap holds (1 MiB)")
    if report.not_rebuilt or report.not_tuned or report.distrusted:
        raise typer.Exit(EXIT_FOUND)
    if is_undecided(report.table.rows, [one.key for one in report.timings]):
        complain(UNDECIDED)
        raise typer.Exit(EXIT_UNDECIDED)


# `warmup build --out TABLE -- COMMAND`: runs a program once, and tunes its decisions.

_UNSET: Final[Mapping[str, Any]] = {"policy": "exact"}
_GIVEN_AGAIN: Final = "give the same command again"
_OF_PROGRAMS: Final = "docs/how-to/build-from-a-program.md"


def build_program(
    command: Sequence[str],
    out: Path | None,
    refused: Mapping[str, Any],
    how: Mapping[str, Any],
    *,
    after: bool,
    as_json: bool,
) -> None:
    """Build the table *out* from *command*; end with the command's exit code, or else the build's.

    *how* are the other arguments of `build_from_program`, and those in *refused* say nothing here.
    """
    from warmup.cli.progress import BuildProgress
    from warmup.cli.streams import interruptible
    from warmup.tuning.program import build_from_program

    given = [
        name
        for name, value in refused.items()
        if value != _UNSET.get(name) and value not in (None, False, ())
    ]
    hint = "; --bundle takes no value, the bundle is written beside the table"
    refuse_beside(
        f"{printable(command[0])!r}, which was read as a program to run,",
        given,
        hint if "bundle" in given else "",
    )
    if out is None:
        raise typer.BadParameter("a program needs --out, the table to complete")
    kept = {name: value for name, value in how.items() if name not in ("force", "dry_run")}
    progress = BuildProgress()

    def end(run: RunReport, left: int, again: int) -> None:
        _say_ended(run, left, again)
        if left or again:  # the terminal was the program's until now
            stack.enter_context(progress)

    with interruptible(progress.interrupted), contextlib.ExitStack() as stack:
        result = build_from_program(
            command,
            out=out,
            after=after,
            stdout_to_stderr=as_json,
            observer=progress,
            ended=end,
            **kept,
        )
    print_report(result, spell_program, document_of_program, as_json=as_json)
    rows, measured = dict(result.rows), set(result.tuned_in_program)
    if result.rest is not None:
        rows |= result.rest.table.rows
        measured |= {one.key for one in result.rest.timings}
    if undecided := is_undecided(rows, measured):
        complain(UNDECIDED)
    own = EXIT_FOUND if not result.is_complete else EXIT_UNDECIDED if undecided else 0
    code = result.run.exit_code or own
    raise typer.Exit(code)


def _say_ended(run: RunReport, left: int, again: int) -> None:
    """Say that the program has ended, and what happens now."""
    then = [f"{counted(left, 'problem')} left to tune"] if left else []
    then += [f"{counted(again, 'unstable row')} to measure again"] if again else []
    words = ", ".join(then) or "nothing left to tune"
    say(f"warmup build: the program ended with code {run.exit_code}; {words}")


def spell_program(result: ProgramBuild) -> Iterator[str]:
    """Yield the rows that were tuned, how the program was recorded, and what has no row."""
    from warmup.cli.build_render import slower_at_largest, spell

    rest, rows = result.rest, result.rows
    again = set() if rest is None else {one.key for one in rest.timings}
    own = sorted(result.tuned_in_program - again, key=natural_order)
    if tuned := {key: rows[key] for key in own}:
        yield "tuned in the program:"
        yield from _tuned_rows(tuned)
        yield from slower_at_largest(tuned)
    if rest is not None and (rest.timings or rest.not_rebuilt or rest.not_tuned):
        yield "tuned when the program had ended:"
        yield from spell(rest, _GIVEN_AGAIN)
    else:
        if unstable := sum(row.evidence.is_unstable for row in rows.values()):
            yield unstable_rows(unstable, len(rows), _GIVEN_AGAIN)
        words = f"{counted(len(rows), 'row')}, {len(own)} tuned now"
        yield f"{result.path}: {words if rows else 'no rows: nothing was asked'}"
    if changed := result.changed_afterwards:
        yield (
            f"{counted(len(changed), 'decision')} changed when the program had ended, and kernels "
            f"with them: {_GIVEN_AGAIN}, which tunes these kernels"
        )
    audit = result.run.audit
    parts = [
        f"processes {audit.runs}",
        f"hits {sum(audit.hits.values())}",
        f"tuned in the program {len(result.tuned_in_program)}",
        f"left for the end {len(result.problems)}",
        f"silent {len(audit.silent)}",
    ]
    parts += [f"uncovered{in_brackets(audit.uncovered)}"] if audit.uncovered else []
    parts += [f"graphs from a cache {audit.from_cache}"] if audit.from_cache else []
    parts += [f"not recorded {audit.failed}"] if audit.failed else []
    parts += [f"unreadable event lines {audit.damaged}"] if audit.damaged else []
    yield from fold(
        f"program: {', '.join(parts)} ({_OF_PROGRAMS})", indent=2, width=terminal_width()
    )
    if result.run.unread:
        yield f"the log of the program was not read to its end ({result.run.unread})"
    if rest is not None and rest.not_rebuilt and result.collected:
        yield "problems that cannot be rebuilt are tuned while the program runs: omit --after"
    if result.run.exit_code:
        yield f"the program ended with code {result.run.exit_code}"


def _tuned_rows(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield *rows*: one line each, or the number of rows of a kind that is not listed."""
    listed, counts = list[Sequence[str]](), Counter[str]()
    for key, row in rows.items():
        kind = kind_of(key)
        if kind.summary is None:
            words = kind.ingredients(key)
            question = words.get(kind.question or "", kind.name)
            listed.append((words.get("m", ""), kind.brief(key), question, *row_cells(row)))
        else:
            counts[kind.summary] += 1
    if listed:
        yield from grid(("m", "op", "epilogue", *ROW_HEAD), listed, texts=4)
    yield from (f"{count} {summary}" for summary, count in counts.items())


def document_of_program(result: ProgramBuild) -> dict[str, Any]:
    """Return *result* as JSON values."""
    from warmup.cli.build_render import document

    audit, rest = result.run.audit, result.rest
    return {
        "path": str(result.path),
        "exit_code": result.run.exit_code,
        "processes": audit.runs,
        "hits": sum(audit.hits.values()),
        "silent": len(audit.silent),
        "not_recorded": audit.failed,
        "from_cache": audit.from_cache,
        "uncovered": dict(audit.uncovered),
        "tuned_in_program": [
            {"key": key, "kind": kind_of(key).name} for key in sorted(result.tuned_in_program)
        ],
        "changed_afterwards": result.changed_afterwards,
        "left": [{"key": one.key, "kind": one.kind} for one in result.problems],
        "rest": None if rest is None else document(rest),
    }
