"""`--devices` and `--cluster` of `warmup build`: what they go with, and what is said of devices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from warmup.cli.build_source import refuse_beside
from warmup.core.counted import counted
from warmup.tuning.budget import parse_seconds
from warmup.tuning.report import BuildReport


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
