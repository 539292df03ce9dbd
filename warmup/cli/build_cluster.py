"""`--cluster` of `warmup build`: what it goes with."""

from __future__ import annotations

from functools import partial

from warmup.cli.build_source import refuse_beside
from warmup.tuning.budget import parse_seconds
from warmup.tuning.report import BuildReport


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
