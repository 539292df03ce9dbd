"""`warmup build`: tune every bucket of a model, or the misses of an audit."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.buckets.dims import ShapePolicy
from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND, EXIT_UNDECIDED
from warmup.cli.output import complain, print_report, say
from warmup.cli.signals import interruptible
from warmup.core.method import Search

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
    from warmup.cli.build_belief import MEASURE_ALL, UNDECIDED, is_undecided
    from warmup.cli.build_program import build_program
    from warmup.cli.build_render import document, document_of_plan, spell, spell_plan
    from warmup.cli.build_source import chosen_build, is_empty_share, on_cluster, on_devices
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
