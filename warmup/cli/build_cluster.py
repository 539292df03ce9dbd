"""`--cluster` of `warmup build`: what it goes with."""

from __future__ import annotations

import contextlib
import sys
from functools import partial

from warmup.cli.build_source import refuse_beside
from warmup.tuning.budget import parse_seconds
from warmup.tuning.report import BuildReport, Observer


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

    words = dict(run.keywords)
    given = ["model"] if run.func is not build_problems else []
    given += ["device"] if words.pop("device") != "auto" else []
    given += ["dry_run"] if words.pop("dry_run") else []
    given += ["shard"] if words.pop("shard") else []
    refuse_beside("--cluster", given)
    seconds = parse_seconds(limit, "--problem-limit")
    return partial(
        _build,
        *run.args,
        cluster=cluster,
        devices=devices or ALL,
        budget=budget,
        problem_limit_s=seconds,
        **words,
    )


def _build(*arguments: object, observer: Observer, **words: object) -> BuildReport:
    """Build with stdout kept for the report: Ray prints there which nodes it lost."""
    from warmup.tuning.cluster.build import build_on_cluster

    with contextlib.redirect_stdout(sys.stderr):
        return build_on_cluster(*arguments, observer=observer, **words)  # type: ignore[arg-type]
