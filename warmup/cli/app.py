"""The `warmup` command: its subcommands. Each imports what it runs when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from warmup.cli.audit import audit
from warmup.cli.bench import layers, mm, pad
from warmup.cli.build import build
from warmup.cli.check import check
from warmup.cli.compare import compare
from warmup.cli.doctor import doctor
from warmup.cli.exchange import export, import_table
from warmup.cli.explain import explain
from warmup.cli.model_options import with_engine_options, with_model_options
from warmup.cli.options import Debug, Quiet, Verbose, with_common_options
from warmup.cli.output import print_line
from warmup.cli.profile import profile
from warmup.cli.run import CONTEXT_SETTINGS, run
from warmup.cli.suggest import suggest
from warmup.cli.tables import diff, merge, show
from warmup.core.text import __version__

_HELP_NAMES: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}


def _epilog(examples: str) -> str:
    """Return the end of a help text: *examples*, a line for each, and where exit codes are."""
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
bench = typer.Typer(
    help="Time GEMMs, layers and pad decisions.",
    epilog=_epilog("warmup bench mm --shapes 128x9216x4096"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
_COMMAND_NAMES: Final = {import_table: "import"}
_EXAMPLES: Final = {
    "doctor": "warmup doctor",
    "build": """
        warmup build --model mlp.py --seqlens 560,1024
        warmup build --model pkg.mod:Net --dims "batch=1,8;seqlen=4..512"
        warmup build --problems misses.json --out tables/served.json
        warmup build --out tables/served.json -- python serve.py --port 8000
    """,
    "explain": "warmup explain --model mlp.py --seqlens 1..1024",
    "suggest": "warmup suggest --histogram lengths.txt --max-buckets 6",
    "import": "warmup import lookup_table.json --out tables/mlp.json",
    "export": "warmup export tables/mlp.json --out lookup_table.json",
    "show": """
        warmup show tables/mlp.json
        warmup show tables/mlp.json --op addmm --bucket 560
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
        warmup profile --model mlp.py --seqlens 560 --record trace.json.gz
        warmup profile --diff before.json.gz after.json.gz
    """,
    "mm": "warmup bench mm --shapes 128x9216x4096 --out results",
    "pad": "warmup bench pad --samples 500 --out pad.jsonl --budget 2h",
    "layers": "warmup bench layers --layers rmsnorm,softmax --backends eager,compiled",
}
# Commands that need inductor's cache folder; doctor and check report on it.
_NEEDS_CACHE: Final = frozenset({"build", "import", "explain", "compare", "mm", "layers", "pad"})


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
    quiet: Quiet = False,
    verbose: Verbose = 0,
    debug: Debug = False,
) -> None:
    """Ahead-of-time max-autotune for torch.compile: build a table, serve from it, audit it."""
    del version, quiet, verbose, debug  # of the command that follows; `with_common_options`


def _add(to: typer.Typer, command: Callable[..., None], **options: Any) -> None:
    """Add *command* with the options of every command and its examples."""
    name = _COMMAND_NAMES.get(command, command.__name__)
    run_it = with_model_options(with_engine_options(command) if command is build else command)
    run_it = with_common_options(run_it, compiles=name in _NEEDS_CACHE)
    example = _EXAMPLES.get(command.__name__) or _EXAMPLES[name]
    summary = inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]  # whole in the list
    to.command(name, epilog=_epilog(example), short_help=summary, **options)(run_it)


_add(app, doctor)
_add(app, build, context_settings=CONTEXT_SETTINGS)
for one in (
    import_table,
    export,
    explain,
    suggest,
    show,
    diff,
    merge,
    check,
    audit,
    compare,
    profile,
):
    _add(app, one)
_add(app, run, context_settings=CONTEXT_SETTINGS)
for bench_command in (mm, layers, pad):
    _add(bench, bench_command)
app.add_typer(bench, name="bench")
