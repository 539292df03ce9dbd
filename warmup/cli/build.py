"""`warmup build`: tune every bucket, or what serving missed."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from warmup.buckets.dims import ShapePolicy
from warmup.cli.arguments import DEVICE, DIMS, DTYPE, INPUTS, JSON, MODEL, SEQLENS
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.signals import interruptible
from warmup.core.method import Search


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
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Compile layers that repeat in every bucket too.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Tune again what the table has.")] = False,
    timings: Annotated[
        Path | None, typer.Option(help="Write every candidate's time here, as JSON lines.")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Tune every bucket, or what serving missed, and write the winners to a table."""
    from warmup.cli.build_render import print_build, print_build_json, writing_timings
    from warmup.cli.progress import BuildProgress
    from warmup.tuning.build import build as build_model
    from warmup.tuning.from_misses import build_problems

    of_model = {
        "--seqlens": seqlens,
        "--dims": dims,
        "--input": inputs,
        "--dtype": dtype,
        "--budget": budget,
        "--bundle": bundle,
        "--bundle-graphs": bundle_graphs,
        "--all-layers": all_layers,
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
        shared |= {"bundle": bundle, "bundle_graphs": bundle_graphs, "all_layers": all_layers}
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
