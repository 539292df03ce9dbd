"""`chosen_build`: the build that the options of `warmup build` mean, on one device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from warmup.tuning.report import BuildReport


def chosen_build(
    model: str | None,
    problems: Path | None,
    out: Path | None,
    of_model: Mapping[str, Any],
    shared: Mapping[str, Any],
    *,
    cluster: str | None,
) -> partial[BuildReport]:
    """Return the build of *model* or of *problems*, with what is *shared* by both.

    *of_model* are the options that only a build of a model has; on a *cluster* problems have
    ``budget`` too.

    Raises:
        typer.BadParameter: not one of both is given, or an option does not go with it.
    """
    from warmup.tuning.build import build
    from warmup.tuning.from_misses import build_problems

    if model is not None and problems is None:
        return partial(build, model, out=out, **of_model, **shared)
    if model is not None or problems is None:
        raise typer.BadParameter("give one of --model and --problems")
    allowed = {"budget"} if cluster else set()
    if given := [name for name, value in of_model.items() if value and name not in allowed]:
        flags = ["--input" if name == "inputs" else f"--{name.replace('_', '-')}" for name in given]
        raise typer.BadParameter(f"--problems cannot be combined with {', '.join(flags)}")
    if out is None:
        raise typer.BadParameter("--problems needs --out, the table to complete")
    return partial(build_problems, problems, out=out, **shared)
