"""`chosen_build`: the build that the options of `warmup build` mean, on one device or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from warmup.cli.output import say
from warmup.core.counted import counted
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.tuning.budget import parse_seconds
from warmup.tuning.report import BuildReport


def chosen_build(
    model: str | None,
    problems: Path | None,
    *,
    out: Path | None,
    of_model: Mapping[str, Any],
    shared: Mapping[str, Any],
    cluster: str | None,
) -> partial[BuildReport]:
    """Return the build of *model* or *problems*, with what is *shared* by all.

    *of_model* are the options that only a build of a model has; on a *cluster* problems have
    ``budget`` too.

    Raises:
        typer.BadParameter: not one of the two is given, or an option does not go with it.
    """
    from warmup.tuning.build import build
    from warmup.tuning.from_misses import build_problems

    if (model is None) == (problems is None):
        raise typer.BadParameter("give one of --model, --problems, --from-vllm and -- COMMAND")
    if model is not None:
        shared = dict(shared)
        refuse_beside("--model", ["shard"] if shared.pop("shard") else [])
        return partial(build, model, out=out, **of_model, **shared)
    allowed = {"budget"} if cluster else set()
    given = [name for name, value in of_model.items() if value and name not in allowed]
    given += ["no_freezing"] if of_model["freezing"] is False else []
    refuse_beside("--problems", given)
    if out is None:
        raise typer.BadParameter("--problems needs --out, the table to complete")
    assert problems is not None
    return partial(build_problems, problems, out=out, **shared)


def is_empty_share(problems: Path | None, shard: str | None) -> bool:
    """Return whether the share *shard* of *problems* has no problem, and say so on stderr then.

    Raises:
        typer.BadParameter: *shard* is not of the form ``I/N``.
        SettingsError: *problems* is no misses document.
    """
    from warmup.diagnostics.misses import read_misses
    from warmup.tuning.missed_build import parse_shard, share_of

    if shard is None or problems is None:
        return False
    try:
        parse_shard(shard)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        share_of(read_misses(problems), shard)
    except NothingRecordedError as error:
        say(f"{error}; nothing was tuned, and no table was written")
        return True
    return False


def refuse_beside(source: str, given: Sequence[str], hint: str = "") -> None:
    """Return where nothing is *given*: arguments that do not go with *source*, by their names here.

    A *hint* follows the text of the error.

    Raises:
        typer.BadParameter: there are some; the text has their options.
    """
    if given:
        flags = ["--input" if name == "inputs" else f"--{name.replace('_', '-')}" for name in given]
        raise typer.BadParameter(f"{source} cannot be combined with {', '.join(flags)}{hint}")


def on_devices(run: partial[BuildReport], devices: str | None, limit: str) -> partial[BuildReport]:
    """Return *run*, a build on one device, as a build on *devices*; *run* itself without them.

    Raises:
        typer.BadParameter: *run* has an argument that does not go with several devices.
        SettingsError: *limit* is no time.
    """
    if devices is None:
        return run
    from warmup.tuning.devices.build import REFUSED, build_model_on_devices, build_on_devices
    from warmup.tuning.devices.host import parse_devices
    from warmup.tuning.from_misses import build_problems

    words = dict(run.keywords)
    is_model = run.func is not build_problems
    given = ["device"] if words.pop("device") != "auto" else []
    given += [name for name in REFUSED if is_model and words[name]]
    refuse_beside("--devices", given)
    seconds = parse_seconds(limit, "--problem-limit")
    if words.pop("dry_run"):  # a plan is made with the first device alone
        return partial(run, device=parse_devices(devices)[0].name)
    build = build_model_on_devices if is_model else build_on_devices
    return partial(build, *run.args, devices=devices, problem_limit_s=seconds, **words)


def on_cluster(
    run: partial[BuildReport],
    *,
    cluster: str,
    devices: str | None,
    limit: str,
    budget: str | None,
) -> partial[BuildReport]:
    """Return *run*, a build of problems on one device, as a build on the devices of *cluster*.

    Raises:
        typer.BadParameter: *run* has an argument that does not go with a cluster.
        SettingsError: *limit* is no time.
    """
    from warmup.tuning.devices.host import ALL
    from warmup.tuning.from_misses import build_problems
    from warmup.tuning.ray_build import build_on_cluster

    words = dict(run.keywords)
    given = ["model"] if run.func is not build_problems else []
    given += ["device"] if words.pop("device") != "auto" else []
    given += ["dry_run"] if words.pop("dry_run") else []
    given += ["rows_from"] if words.pop("rows_from") else []
    refuse_beside("--cluster", given)
    seconds = parse_seconds(limit, "--problem-limit")
    return partial(
        build_on_cluster,
        *run.args,
        cluster=cluster,
        devices=devices or ALL,
        budget=budget,
        problem_limit_s=seconds,
        **words,
    )


def spell_devices(report: BuildReport) -> Iterator[str]:
    """Yield a line for each of several devices: its problems, its control time, why it was left."""
    for share in report.devices:
        control = f", control problem {share.control_us:.1f} us" if share.control_us else ""
        left = f"; left out: {share.left_out}" if share.left_out else ""
        yield f"{share.name}: {counted(share.problems, 'problem')}{control}{left}"
