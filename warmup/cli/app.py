"""The `warmup` command: its subcommands. Each imports what it runs when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from warmup.cli.audit import CONTEXT_SETTINGS, audit, run
from warmup.cli.build import build
from warmup.cli.check import check
from warmup.cli.explain import doctor, explain, suggest
from warmup.cli.options import with_options
from warmup.cli.output import print_line
from warmup.cli.tables import diff, export, merge, show
from warmup.cli.timings import bench, compare, profile
from warmup.core.text import __version__

_HELP_NAMES: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}


def _epilog(examples: str) -> str:
    lines = "\n  ".join(inspect.cleandoc(examples).splitlines())
    return f"\b\nExamples:\n  {lines}\n\nExit codes and errors: docs/reference/errors.md"


app = typer.Typer(
    name="warmup",
    context_settings=_HELP_NAMES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=_epilog(
        """
        warmup doctor
        warmup build --model mlp.py --seqlens 560,1024,2048
        warmup run --table tables/DEVICE/mlp.f32.json -- python serve.py
        """
    ),
)
_EXAMPLES: Final = {
    "doctor": "warmup doctor",
    "build": """
        warmup build --model mlp.py --seqlens 560,1024
        warmup build --problems misses.json --out tables/served.json
        warmup build --out tables/served.json -- python serve.py --port 8000
    """,
    "explain": "warmup explain --model mlp.py --seqlens 1..1024",
    "suggest": "warmup suggest --histogram lengths.txt --max-buckets 6",
    "export": """
        warmup export tables/mlp.json --out lookup_table.json
        warmup export tables/mlp.json --to vllm-batch-invariant --out tiles.py
    """,
    "show": """
        warmup show tables/mlp.json
        warmup show tables/mlp.json --rows "addmm m=560"
        warmup show tables/mlp.json --candidates "addmm m=560"
        warmup show tables/mlp.json --review --fail-on wrong
    """,
    "diff": "warmup diff old.json new.json",
    "merge": "warmup merge a.json b.json --out both.json --prefer faster",
    "check": """
        warmup check tables/mlp.json
        warmup check tables/mlp.json --prime --model mlp.py --seqlens 560
    """,
    "run": "warmup run --table tables/mlp.json -- python serve.py --port 8000",
    "audit": "warmup audit audit.jsonl --fail-on miss,uncovered",
    "compare": "warmup compare --model mlp.py --seqlens 560 --table tables/mlp.json",
    "profile": """
        warmup profile trace.json.gz --table tables/mlp.json
        warmup profile --model mlp.py --seqlens 560 --out trace.json.gz
        warmup profile before.json.gz after.json.gz
    """,
    "bench": """
        warmup bench mm --shapes 128x9216x4096 --out results
        warmup bench layers rmsnorm softmax --backends compiled,table
    """,
}
# Commands that need inductor's cache folder; doctor and check report on it.
_NEEDS_CACHE: Final = frozenset({"build", "explain", "compare", "bench"})
_NEEDS_MODEL: Final = frozenset({"explain", "compare"})


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
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Ahead-of-time max-autotune for torch.compile: build a table, serve from it, audit it."""
    del version  # its callback has printed it


class _Command(typer.core.TyperCommand):
    """A command whose help lists its options under the heading that each names, else Options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            record = parameter.get_help_record(ctx)
            if record is not None:
                name = record[0].partition(" <")[0]  # without the name of a Python type
                panels.setdefault(panel, []).append((name, record[1]))
        for panel, records in panels.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


def _add(command: Callable[..., None], **settings: Any) -> None:
    name = command.__name__
    run_it = with_options(
        command,
        needs_model=name in _NEEDS_MODEL,
        has_devices=command is build,
        compiles=name in _NEEDS_CACHE,
    )
    summary = inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]  # whole in the list
    more = {"epilog": _epilog(_EXAMPLES[name]), "short_help": summary, **settings}
    app.command(name, cls=_Command, **more)(run_it)


# What follows the first word that is no option belongs to the command, `--` or not.
_add(build, context_settings=CONTEXT_SETTINGS)
_add(check)
_add(run, context_settings=CONTEXT_SETTINGS)
for command in (audit, show, diff, merge, suggest, explain, compare, bench, profile):
    _add(command)
_add(doctor)
_add(export)
