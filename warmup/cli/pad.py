"""`warmup pad`: samples of pad decisions, and the section of a model file learned from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warmup.bench.prediction.pad_record import GROUP_WORDS, STRATEGY_WORDS
from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.fit import write_report
from warmup.cli.output import ABSENT, fold, grid, print_report, say
from warmup.core.counted import counted
from warmup.core.errors import DeviceModelError

if TYPE_CHECKING:
    from warmup.tuning.pad_collection import PadCollection

_SHOWN_FAILURES: Final = 5
_PROBLEM_LIMIT: Final = "30m"  # as of a build


def collect(
    *,
    samples: Annotated[int, typer.Option(min=1, help="How many samples the file is to have.")],
    out: Annotated[
        Path,
        typer.Option(help="The file of samples; one with fewer is completed, such as pad.jsonl."),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other samples.")] = 1,
    dtypes: Annotated[str, typer.Option(help="Dtypes to draw: f16, bf16, f32.")] = "f16,bf16,f32",
    device: options.DeviceOption = "auto",
    devices: options.DevicesOption = None,
    launch: Annotated[
        str | None, typer.Option(help=f"{options.LAUNCH_HELP} Default eager.")
    ] = None,
    l2: Annotated[str | None, typer.Option(help=f"{options.L2_HELP} Default cold.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Begin no sample after this time, such as 20m.")
    ] = None,
    wait_for_quiet: options.WaitForQuiet = None,
    as_json: options.AsJson = False,
) -> None:
    """Time random unaligned GEMMs as they are and padded, each tuned as a row is.

    A second run goes on where the first was stopped. Exit code 1 where a sample could not be
    measured.
    """
    from warmup.cli.build_devices import on_devices
    from warmup.cli.collect_progress import CollectProgress
    from warmup.cli.signals import interruptible
    from warmup.cli.timings_file import timings_file
    from warmup.prediction.pad.sampling import parse_dtypes
    from warmup.prediction.training import RANDOM
    from warmup.tuning.budget import parse_seconds
    from warmup.tuning.devices.names import parse_devices
    from warmup.tuning.from_misses import build_problems
    from warmup.tuning.pad_collection import collect_pads, draw_samples, drop_cut_line

    seconds = None if budget is None else parse_seconds(budget, "--budget")
    build = on_devices(partial(build_problems, device=device), devices, _PROBLEM_LIMIT)
    if devices is not None:
        device = parse_devices(devices)[0].name
    keys = draw_samples(samples, seed, parse_dtypes(dtypes), device, is_measured=devices is None)
    if drop_cut_line(out):
        say(f"{out}: the last line was cut, and is dropped")
    with (
        timings_file(out, RANDOM, {}) as kept,
        CollectProgress(kept, out) as progress,
        interruptible(progress.interrupted),
    ):
        done = collect_pads(
            keys,
            out=out,
            build=build,
            launch=launch,
            l2=l2,
            seconds=seconds,
            wait_for_quiet=wait_for_quiet,
            observer=progress,
        )
    print_report((out, done), spell_collection, document_of_collection, as_json=as_json)
    if done.failed:
        raise typer.Exit(EXIT_FOUND)


def spell_collection(made: tuple[Path, PadCollection]) -> Iterator[str]:
    """Yield how many samples the file has, what is left, and which could not be measured."""
    path, done = made
    yield (
        f"{path}: {done.known + done.measured} of {counted(done.asked, 'sample')}, "
        f"{done.measured} measured now"
    )
    if done.left:
        yield f"{done.left} left: the budget was spent; run the same command again"
    for key, reason in list(done.failed.items())[:_SHOWN_FAILURES]:
        yield from fold(f"not measured: {key}: {reason}", indent=2)
    if len(done.failed) > _SHOWN_FAILURES:
        yield f"{len(done.failed) - _SHOWN_FAILURES} more not measured; --json has all"


def document_of_collection(made: tuple[Path, PadCollection]) -> dict[str, Any]:
    """Return what became of the samples as JSON values."""
    path, done = made
    return {
        "out": str(path),
        "asked": done.asked,
        "known": done.known,
        "measured": done.measured,
        "left": done.left,
        "failed": dict(done.failed),
    }


def fit_pad(
    *,
    samples: Annotated[
        list[Path],
        typer.Argument(
            help="Files of `warmup pad collect`, and `build --timings` files of models to judge."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The device's model file: gets the section, or is made."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for the report as JSON, and its chart.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Learn from samples whether to pad, and judge it on those left out of the fit.

    Decisions of models, which are never fitted to, are judged too.
    """
    from warmup.bench.charts.draw import check_matplotlib
    from warmup.bench.prediction.pad_record import pad_charts, pad_record_of
    from warmup.prediction.model_file import write_device_model
    from warmup.prediction.model_sections import with_pads
    from warmup.prediction.pad.samples import pad_samples, read_paddings
    from warmup.prediction.pad.strategies import evaluate_pads

    if report is not None:
        check_matplotlib()
    measured = pad_samples(read_paddings(samples))
    evaluation = evaluate_pads(measured, _torch_heuristic(measured.on.arch))
    record = pad_record_of(evaluation)
    print_report(record, spell_pad_fit, lambda same: same, as_json=as_json)
    if report is not None:
        write_report(record, pad_charts(record), report, "pad-held-out")
    if out is not None:
        if (reason := evaluation.model.too_little) is not None:
            raise DeviceModelError(
                str(out), f"not written: {reason}", "collect more with `warmup pad collect`"
            )
        write_device_model(out, with_pads(out, measured.on, evaluation.model))
        say(f"wrote {out}: {out.stat().st_size} bytes")


def _torch_heuristic(arch: str) -> Any:
    """Return torch's own heuristic for *arch*, None where torch has none.

    Raises:
        InductorChangedError: an internal of torch is not as it was.
    """
    from warmup.inductor.internals import PAD_SAMPLE_INTERNALS, check_internals

    check_internals(PAD_SAMPLE_INTERNALS)
    from warmup.inductor.pad_mm.torch_heuristic import torch_pad_heuristic

    return torch_pad_heuristic(arch)


def spell_pad_fit(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as text."""
    on = record["device"]
    yield from fold(
        f"{on['device']}, torch {on['torch']}, triton {on['triton']}, {record['method']}", indent=2
    )
    decisions = counted(record["layers"]["cases"], "decision")
    yield f"{counted(record['samples'], 'sample')} drawn, {decisions} of models"
    for reason, count in sorted(record["left_out"].items()):
        yield from fold(f"{count} left out: {reason}", indent=2)
    leaves = ", ".join(f"{count} {answer}" for answer, count in record["leaves"].items())
    yield f"leaves of the tree: {leaves}"
    for group, words in GROUP_WORDS.items():
        judged = record[group]
        if judged["cases"]:
            yield ""
            yield from _spell_judged(words, judged)
    if record["too_little"] is not None:
        yield f"no device model: {record['too_little']}"


def _spell_judged(words: str, judged: Mapping[str, Any]) -> Iterator[str]:
    yield from fold(
        f"{words}: {judged['cases']}, of which {judged['unsure']} unsure; held out: "
        f"{judged['held_out']}",
        indent=2,
    )
    head = ("decided by", "n", "padded", "speed", "of best", "worst", "5% slower")
    yield from grid(
        head,
        [
            _outcome_cells(STRATEGY_WORDS[name], outcome)
            for name, outcome in judged["strategies"].items()
        ],
        texts=1,
    )


def _outcome_cells(words: str, outcome: Mapping[str, Any]) -> tuple[str, ...]:
    share = outcome["share"]
    return (
        words,
        str(outcome["cases"]),
        str(outcome["padded"]),
        f"{outcome['gain']:.3f}x",
        ABSENT if share is None else f"{share:.1%}",
        f"{outcome['worst']:.3f}x",
        str(outcome["slower"]),
    )
