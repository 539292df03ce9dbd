"""`--devices` of `warmup build`: what it goes with, and what the report says of each device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import typer

from warmup.core.counted import counted
from warmup.tuning.budget import parse_seconds
from warmup.tuning.report import BuildReport


def check_on_devices(device: str, refused: Mapping[str, object]) -> None:
    """Check that neither ``--device`` nor an option in *refused* was given with ``--devices``.

    Raises:
        typer.BadParameter: one was; the error names all.
    """
    given = [f"--{name}" for name, value in refused.items() if value]
    if device != "auto":
        given.append("--device")
    if given:
        raise typer.BadParameter(f"--devices cannot be combined with {', '.join(given)}")


def on_devices(
    build: Callable[..., BuildReport], run: partial[BuildReport], devices: str, limit: str
) -> partial[BuildReport]:
    """Return *build* on *devices* with the arguments of *run*, the build on one device.

    Raises:
        SettingsError: *limit* is no time.
    """
    words = {name: value for name, value in run.keywords.items() if name != "device"}
    seconds = parse_seconds(limit, "--problem-limit")
    return partial(build, *run.args, devices=devices, problem_limit_s=seconds, **words)


def spell_devices(report: BuildReport) -> Iterator[str]:
    """Yield a line for each of several devices: its problems, its control time, why it was left."""
    for share in report.devices:
        control = f", control problem {share.control_us:.1f} us" if share.control_us else ""
        left = f"; left out: {share.left_out}" if share.left_out else ""
        yield f"{share.name}: {counted(share.problems, 'problem')}{control}{left}"


def document_of_devices(report: BuildReport) -> list[dict[str, Any]]:
    """Return the share of each device as JSON values; empty for a build on one device."""
    return [
        {
            "name": share.name,
            "problems": share.problems,
            "control_us": share.control_us,
            "left_out": share.left_out,
        }
        for share in report.devices
    ]
