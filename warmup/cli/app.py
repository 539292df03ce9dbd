"""Commands and their options. Each command imports its verb when it runs."""

from __future__ import annotations

import sys
import warnings
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import warmup
from warmup.axis import ShapePolicy
from warmup.cli import EXIT_FOUND
from warmup.cli.arguments import DEVICE, DIMS, DTYPE, INPUTS, JSON, MODEL, SEQLENS
from warmup.cli.bench_layers import layers
from warmup.cli.bench_mm import mm
from warmup.cli.check import check
from warmup.cli.compare import compare
from warmup.cli.doctor import doctor
from warmup.cli.explain import explain
from warmup.cli.run import CONTEXT_SETTINGS
from warmup.cli.run import run as run_command
from warmup.cli.signals import interruptible
from warmup.cli.suggest import suggest
from warmup.errors import SettingsError
from warmup.method import Search

app = typer.Typer(
    name="warmup",
    help="Max-autotune ahead of time: build a table, check it, serve from it, audit it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(
    help="Time products and layers against other ways to compute them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench.command()(mm)
bench.command()(layers)
app.add_typer(bench, name="bench")


class Prefer(StrEnum):
    """How merge settles a key with two winners."""

    A = "a"
    B = "b"
    FASTER = "faster"


class AuditFormat(StrEnum):
    """How an audit is printed."""

    TEXT = "text"
    JSON = "json"
    PROMETHEUS = "prometheus"


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer passes a flag's value
    if wanted:
        sys.stdout.write(f"warmup {warmup.__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Max-autotune ahead of time: build a table, check it, serve from it, audit it."""
    del version


@app.command()
def build(
    model: Annotated[str | None, MODEL] = None,
    problems: Annotated[
        Path | None,
        typer.Option(help="Instead of a model: what `warmup audit --misses-out` wrote."),
    ] = None,
    seqlens: Annotated[str | None, SEQLENS] = None,
    dims: Annotated[list[str] | None, DIMS] = None,
    inputs: Annotated[list[str] | None, INPUTS] = None,
    device: Annotated[str, DEVICE] = "auto",
    dtype: Annotated[str | None, DTYPE] = None,
    mode: Annotated[
        str,
        typer.Option(help="max-autotune-gemm, max-autotune or max-autotune-no-cudagraphs."),
    ] = "max-autotune-gemm",
    backends: Annotated[
        str | None, typer.Option(help="ATEN,CPP on CPU; ATEN,TRITON on a GPU (the defaults).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The table to write; default tables/DEVICE/MODEL.DTYPE.json."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Largest relative L2 error against eager."),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(help="eager or cudagraph: how candidates are timed; default as the mode."),
    ] = None,
    l2: Annotated[
        str | None, typer.Option(help="cold or warm: the L2 that candidates meet; default cold.")
    ] = None,
    fused_top_k: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Candidates beside the library's that are timed with their epilogue; default 4.",
        ),
    ] = None,
    search: Annotated[
        Search, typer.Option(help="How many kernels are tried: default, wide or exhaustive.")
    ] = Search.DEFAULT,
    budget: Annotated[
        str | None,
        typer.Option(help="Time for a wider search, such as 20m: where it may gain most."),
    ] = None,
    pad_weights: Annotated[
        bool | None,
        typer.Option(help="Pad weights ahead of time where that pays; by default on a GPU."),
    ] = None,
    policy: Annotated[
        ShapePolicy,
        typer.Option(help="What buckets serve: their sizes alone, or the range down to the next."),
    ] = ShapePolicy.EXACT,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Write the compiled kernels beside the table too.")
    ] = False,
    bundle_graphs: Annotated[
        str | None,
        typer.Option(help="Also the graphs of a server in this torch.compile mode, as default."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Tune again what the table has.")] = False,
    timings: Annotated[
        Path | None, typer.Option(help="Write every candidate's time here, as JSON lines.")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Tune every bucket, or what serving missed, and write the winners to a table."""
    from warmup.building import build as build_model
    from warmup.cli.build_render import print_build, print_build_json, writing_timings
    from warmup.cli.progress import BuildProgress
    from warmup.rebuilding import build_problems

    of_model = {
        "--seqlens": seqlens,
        "--dims": dims,
        "--input": inputs,
        "--dtype": dtype,
        "--budget": budget,
        "--bundle": bundle,
        "--bundle-graphs": bundle_graphs,
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
    }
    if problems is not None and model is None:
        if given := [name for name, value in of_model.items() if value]:
            raise typer.BadParameter(f"--problems does without {', '.join(given)}")
        if out is None:
            raise typer.BadParameter("--problems needs --out, the table to complete")
        run = partial(build_problems, problems, out=out, **shared)
    elif model is not None and problems is None:
        shared |= {"seqlens": seqlens, "dims": dims, "inputs": tuple(inputs or ()), "dtype": dtype}
        shared |= {"budget": budget, "pad_weights": pad_weights, "policy": policy}
        shared |= {"bundle": bundle, "bundle_graphs": bundle_graphs}
        run = partial(build_model, model, out=out, **shared)
    else:
        raise typer.BadParameter("give one of --model and --problems")
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    with (
        writing_timings(timings) as note,
        BuildProgress(note) as progress,
        interruptible(progress.interrupted),
    ):
        report = run(observer=progress)
    (print_build_json if as_json else print_build)(report)
    if report.not_rebuilt or report.not_tuned:
        raise typer.Exit(EXIT_FOUND)


app.command()(doctor)
app.command()(check)
app.command()(compare)
app.command()(explain)
app.command()(suggest)
app.command("run", context_settings=CONTEXT_SETTINGS)(run_command)


@app.command()
def show(
    table: Annotated[Path, typer.Argument(help="The table file.")],
    op: Annotated[str | None, typer.Option(help="Only this op, such as addmm.")] = None,
    bucket: Annotated[str | None, typer.Option(help="Only rows with this m, such as 560.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print a table for reading."""
    from warmup.cli.render import print_table, print_table_json
    from warmup.table.store import read

    (print_table_json if as_json else print_table)(read(table), op, bucket)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="One table.")],
    b: Annotated[Path, typer.Argument(help="Another table.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print what differs between two tables; exit 1 when something does."""
    from warmup.cli.render import print_difference, print_difference_json
    from warmup.table.merge import diff as run
    from warmup.table.store import read

    difference = run(read(a), read(b))
    (print_difference_json if as_json else print_difference)(difference)
    if not difference.is_empty:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def merge(
    a: Annotated[Path, typer.Argument(help="One table.")],
    b: Annotated[Path, typer.Argument(help="Another table for the same device and runtime.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the union.")],
    prefer: Annotated[Prefer | None, typer.Option(help="Whose winner to take on conflict.")] = None,
) -> None:
    """Write the union of two tables; conflicts are an error unless settled with --prefer."""
    from warmup.table.merge import merge as run
    from warmup.table.store import read, write

    union = run(read(a), read(b), prefer.value if prefer else None)
    write(out, union)
    sys.stderr.write(f"{out}: {len(union.rows)} rows\n")


@app.command()
def audit(
    logs: Annotated[list[Path], typer.Argument(help="JSON-lines audit logs or server text logs.")],
    table: Annotated[Path | None, typer.Option(help="The table whose unused rows to list.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit 1 on any of: miss,uncovered,silent,diverged,outside.")
    ] = None,
    form: Annotated[
        AuditFormat | None, typer.Option("--format", help="How to print it; text without this.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write there, whole or not at all, and not to stdout.")
    ] = None,
    misses_out: Annotated[
        Path | None, typer.Option(help="Write what `warmup build --problems` tunes.")
    ] = None,
) -> None:
    """Read what happened at serving: hits, misses by reason, uncovered work, rows never used."""
    from warmup.auditing import FAILURES
    from warmup.auditing import audit as run
    from warmup.cli.audits import put, spell_audit
    from warmup.misses import encode_misses

    wanted = [word.strip() for word in fail_on.split(",")] if fail_on else []
    if unknown := [word for word in wanted if word not in FAILURES]:
        raise SettingsError(
            f"--fail-on: {', '.join(unknown)} is not something to fail on",
            f"use any of {','.join(FAILURES)}",
        )
    if as_json and form not in (None, AuditFormat.JSON):
        raise SettingsError(f"--json and --format {form} are two formats", "give one of them")
    report = run(logs, table=table)
    if misses_out is not None:
        put(misses_out, encode_misses(report), "--misses-out")
    text = spell_audit(report, AuditFormat.JSON if as_json else form or AuditFormat.TEXT)
    if out is not None:
        put(out, text, "--out")
    else:
        sys.stdout.write(text)
    if failed := report.failures(wanted):
        sys.stderr.write(f"audit failed on: {', '.join(failed)}\n")
        raise typer.Exit(EXIT_FOUND)
