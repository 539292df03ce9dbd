"""`warmup fit`: a device model from the timings of builds, and how good it is on unseen models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.output import ABSENT, fold, grid, print_report, say
from warmup.core.errors import DeviceModelError, SettingsError
from warmup.prediction.evaluation import Ranking
from warmup.prediction.timing_lines import MAX_SPREAD

if TYPE_CHECKING:
    from warmup.bench.charts.chart import Chart
    from warmup.prediction.device_model import DeviceModel

_COMPARED: Final = {"network": "network", "torch_ranking": "torch (mm)"}


def fit(
    *,
    timings: Annotated[
        list[Path], typer.Argument(help="Files that `warmup build --timings` wrote; .gz is read.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The device model to write, such as DEVICE.model.json.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for the held-out report as JSON, and its charts.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Judge a network and torch's own ranking too; takes minutes."
        ),
    ] = False,
    judge: Annotated[
        Path | None,
        typer.Option(
            help="Fit nothing: judge this device model on the sizes it was not fitted to.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit a device model to timings, and judge it on each model left out of the fit.

    The device model predicts times of GEMM candidates that nobody measured.
    """
    if judge is not None and (out is not None or compare):
        raise SettingsError("--judge fits nothing", "leave out --out and --compare")
    from warmup.bench.charts.draw import check_matplotlib
    from warmup.bench.prediction.charts import held_out_charts
    from warmup.bench.prediction.record import record_of
    from warmup.prediction.evaluation import evaluate, judge_unseen
    from warmup.prediction.model_file import (
        encode_device_model,
        read_device_model,
        write_device_model,
    )
    from warmup.prediction.model_sections import with_times
    from warmup.prediction.timing_lines import read_timings
    from warmup.prediction.training import training_set

    if report is not None:
        check_matplotlib()
    training = training_set(read_timings(timings))
    if judge is not None:
        evaluation = judge_unseen(read_device_model(judge), training)
    else:

        def check_size(model: DeviceModel) -> None:
            if out is not None:
                encode_device_model(with_times(out, model))

        ranking = _torch_ranking() if compare else None
        evaluation = evaluate(training, ranking=ranking, say=say, check=check_size)
    record = record_of(evaluation)
    print_report(record, spell, lambda same: same, as_json=as_json)
    if report is not None:
        write_report(record, held_out_charts(record), report, "held-out")
    if out is not None:
        if (reason := evaluation.model.too_little) is not None:
            raise DeviceModelError(str(out), f"not written: {reason}", "add timings of more models")
        write_device_model(out, with_times(out, evaluation.model))
        say(f"wrote {out}: {out.stat().st_size} bytes")


def write_report(
    record: Mapping[str, Any], charts: Mapping[str, Chart], folder: Path, stem: str
) -> None:
    """Write *record* as ``STEM.json`` and *charts* into *folder*, and say which files."""
    from warmup.bench.cells import write_json
    from warmup.bench.charts.draw import draw_all

    paths = draw_all(charts, folder, stem)
    for path in (write_json(record, folder / f"{stem}.json"), *paths):
        say(f"wrote {path}")


def _torch_ranking() -> Ranking:
    """Return torch's own ranking.

    Raises:
        InductorChangedError: this torch has none.
    """
    from warmup.inductor.internals import RANKING_INTERNALS, check_internals

    check_internals(RANKING_INTERNALS)
    from warmup.inductor.gemm.torch_ranking import torch_ranking

    return torch_ranking


def spell(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the held-out report as text."""
    on, models = record["device"], record["models"]
    yield from fold(
        f"{on['device']}, torch {on['torch']}, triton {on['triton']}, {record['method']}", indent=2
    )
    yield f"{record['problems']} GEMMs of {len(models)} sources, {record['times']} times"
    for reason, count in sorted(record["left_out"].items()):
        yield f"{count} left out: {reason}"
    if record["scattered"]:
        yield f"{record['scattered']} times left out: they scattered by more than {MAX_SPREAD:.0%}"
    yield from fold(f"held out: {record['held_out']}", indent=2)
    fitted = record["fitted_to"]
    yield from fold(f"device model: {fitted['problems']} problems, {fitted['method']}", indent=2)
    if not record["by_model"]:
        yield "nothing was held out: there is no second model to fit to"
        return
    yield ""
    head = ("model", "n", "unsure", "error", "p90", "top 1", "top 3", "top 8", "library", "served")
    yield from grid(
        head,
        [
            *(_cells(name, each["device_model"]) for name, each in record["by_model"].items()),
            _cells("all", record["device_model"]),
            *(_cells(words, record[name]) for name, words in _COMPARED.items() if name in record),
        ],
        texts=1,
    )
    yield ""
    yield from _spell_worst(record["device_model"])
    if record["too_little"] is not None:
        yield f"no device model: {record['too_little']}"


def _cells(name: str, summary: Mapping[str, Any]) -> tuple[str, ...]:
    error, regret, served = summary["error"], summary["regret"], summary["served"]
    return (
        name,
        str(summary["problems"]),
        str(summary["unsure"]),
        *(_percent(error[each]) for each in ("median", "p90")),
        *(_ratio(regret[each]["mean"]) for each in ("top_1", "top_3", "top_8", "library")),
        str(served["predicted"]),
    )


def _spell_worst(summary: Mapping[str, Any]) -> Iterator[str]:
    regret, served = summary["regret"], summary["served"]
    for name, words in (("top_1", "first choice"), ("top_3", "best of 3"), ("top_8", "best of 8")):
        each = regret[name]
        yield f"{words}: 95 % within {_ratio(each['p95'])}, worst {_ratio(each['worst'])}"
    yield f"served {served['predicted']} predicted configs: mean gain {_ratio(served['gain'])}"
    yield (
        f"worst gain {_ratio(served['worst_gain'])}; more than 3 % slower than the library: "
        f"{served['slower']}"
    )


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}"


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"
