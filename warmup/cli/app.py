"""The `warmup` command: its subcommands. Each imports what it runs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from warmup.cli.audit import audit
from warmup.cli.bench_layers import layers
from warmup.cli.bench_mm import mm
from warmup.cli.build import build
from warmup.cli.check import check
from warmup.cli.compare import compare
from warmup.cli.doctor import doctor
from warmup.cli.explain import explain
from warmup.cli.output import print_line
from warmup.cli.review import review
from warmup.cli.run import CONTEXT_SETTINGS, run
from warmup.cli.suggest import suggest
from warmup.cli.tables import diff, merge, show
from warmup.core.version import __version__

app = typer.Typer(
    name="warmup",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(
    help="Time GEMMs and layers on several backends.", no_args_is_help=True, rich_markup_mode=None
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer passes a flag's value
    if wanted:
        print_line(f"warmup {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Ahead-of-time max-autotune for torch.compile: build a table, serve from it, audit it."""
    del version


app.command()(doctor)
app.command()(build)
app.command()(explain)
app.command()(suggest)
app.command()(show)
app.command()(diff)
app.command()(merge)
app.command()(review)
app.command()(check)
app.command(context_settings=CONTEXT_SETTINGS)(run)
app.command()(audit)
app.command()(compare)
bench.command()(mm)
bench.command()(layers)
app.add_typer(bench, name="bench")
