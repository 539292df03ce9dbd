"""Help of every command: options under headings, placeholders that mean something, examples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

ERRORS_PAGE: Final = "docs/reference/errors.md"
_OTHERS: Final = "Options"
_ANY_COMMAND: Final = "Any command"
_NO_LIMIT: Final = 10_000  # letters of a command's summary

# Heading -> the options under it, each with the placeholder of its value; None for a switch, or
# where the values themselves are listed.
HEADINGS: Final[Mapping[str, Mapping[str, str | None]]] = {
    "Model and sizes": {
        "model": "MODEL",
        "model-args": "JSON",
        "random-weights": None,
        "problems": "MISSES",
        "fleet": "FILE",
        "after": None,
        "from-vllm": "FOLDER",
        "compile-sizes": "LIST",
        "tensor-parallel": "N",
        "engine-args": "JSON",
        "seqlens": "SIZES",
        "dims": "DIMS",
        "input": "INPUT",
        "device": "DEVICE",
        "dtype": "DTYPE",
        "policy": None,
        "also": "NAME=MODEL",
        "shapes": "SHAPES",
        "layers": "LIST",
        "layer": "FILE.py:CLASS",
        "histogram": "FILE",
        "dim": "NAME",
        "largest": "N",
        "assume": "GPU",
        "samples": "N",
        "seed": "N",
        "dtypes": "LIST",
    },
    "What is tuned": {
        "mode": "MODE",
        "backends": "LIST",
        "custom": "NAME:OPTIONS",
        "search": None,
        "budget": "TIME",
        "pad-weights": None,
        "force": None,
        "retry": "FLAG",
        "dry-run": None,
        "max-buckets": "N",
        "multiple": "N",
        "cost": None,
    },
    "How it is measured": {
        "tolerance": "ERROR",
        "launch": "HOW",
        "l2": "HOW",
        "fused-top-k": "N",
        "wait-for-quiet": "SECONDS",
        "devices": "LIST",
        "cluster": "ADDRESS",
        "problem-limit": "TIME",
        "all-layers": None,
        "verify": None,
        "rounds": "N",
        "timeout": "SECONDS",
        "backward": None,
        "compare": None,
        "judge": "MODEL",
        "grad": None,
        "max-compiles": "N",
        "calls": "N",
        "iterations": "N",
    },
    "Table and serving": {
        "table": "TABLE",
        "variants": "LIST",
        "on-miss": "HOW",
        "uncovered": None,
        "expect-digest": "SHA256",
        "prime": None,
        "op": "OP",
        "bucket": "M",
        "candidates": "KEY",
        "review": None,
        "bundle": "BUNDLE",
        "allow-mismatch": None,
        "prefer": None,
        "peaks": "FILE",
        "against": "FILE",
        "profile": "TRACE",
        "audit": "LOG",
        "fail-on": "LIST",
        "rows-from": "TABLE",
        "like": "TABLE",
        "all": None,
        "served": "VERSIONS",
        "profiles": "FILE",
    },
    "Output": {
        "out": "PATH",
        "bundle-graphs": "MODE",
        "timings": "FILE",
        "report": "FOLDER",
        "audit-log": "FILE",
        "misses-out": "FILE",
        "problems-out": "FILE",
        "record": "FILE",
        "trace-out": "FILE",
        "top": "N",
        "diff": None,
        "ready-file": "FILE",
        "svg": "FILE",
        "chart": "FILE",
        "charts": None,
        "format": None,
        "json": None,
    },
    _ANY_COMMAND: {
        "quiet": None,
        "verbose": None,
        "debug": None,
        "version": None,
        "install-completion": None,
        "show-completion": None,
        "help": None,
    },
}
_HEADING: Final = {option: heading for heading, options in HEADINGS.items() for option in options}
_METAVAR: Final = {
    option: metavar for options in HEADINGS.values() for option, metavar in options.items()
}
_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Prepare": (
        "doctor",
        "suggest",
        "explain",
        "build",
        "collect",
        "fit",
        "pad",
        "import",
        "export",
    ),
    "Serve": ("check", "run", "audit"),
    "Look at tables": ("show", "diff", "merge"),
    "Compare": ("compare", "profile", "bench", "mm", "layers"),
}


def heading_of(parameter: Any) -> str:
    """Return the heading under which help lists the option *parameter*."""
    return _HEADING.get(_name_of(parameter), _OTHERS)


class HelpCommand(TyperCommand):
    """A command whose help has its options under headings, and examples last."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        _name_values(self)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line: options, then the names of arguments."""
        del ctx
        arguments = [one for one in self.params if one.param_type_name == "argument"]
        return [str(self.options_metavar), *map(_argument_name, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each heading with its options."""
        _write_parameters(self, ctx, formatter)

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        """Write the examples, a line for each."""
        _write_examples(self.epilog, formatter)


class HelpGroup(TyperGroup):
    """A group of commands, whose help has the commands under headings, with whole summaries."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        _name_values(self)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands, then the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands; a summary that is too long is folded, not cut."""
        known = self.list_commands(ctx)
        placed = [name for names in _COMMANDS.values() for name in names]
        others = tuple(name for name in known if name not in placed)
        for heading, names in {**_COMMANDS, "Commands": others}.items():
            rows = [
                (name, command.get_short_help_str(_NO_LIMIT))
                for name in names
                if name in known and (command := self.get_command(ctx, name)) is not None
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        """Write the examples, a line for each."""
        _write_examples(self.epilog, formatter)


def _name_of(parameter: Any) -> str:
    """Return the long name of an option: ``seqlens`` of ``--seqlens``."""
    return str(max(parameter.opts, key=len)).lstrip("-")


def _name_values(command: Any) -> None:
    """Give each option of *command* the placeholder of its value, and each argument its name."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or _argument_name(parameter).removesuffix("...")
        elif not (parameter.is_flag or parameter.count or _has_choices(parameter)):
            parameter.metavar = parameter.metavar or _METAVAR.get(_name_of(parameter))


def _has_choices(parameter: Any) -> bool:
    """Return whether help lists the values of *parameter*, in the words of two typers."""
    descriptor = getattr(parameter, "type_descriptor", None)
    is_choice = getattr(descriptor, "is_choice", False)
    return is_choice or type(getattr(parameter, "type", None)).__name__ == "Choice"


def _argument_name(parameter: Any) -> str:
    many = getattr(parameter, "nargs", 1) == -1
    name = str(parameter.name).upper()
    return f"{name.removesuffix('S') if many else name}{'...' if many else ''}"


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    sections |= {heading: [] for heading in (*HEADINGS, _OTHERS) if heading != _ANY_COMMAND}
    sections[_ANY_COMMAND] = []
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            sections["Arguments"].append((_argument_name(parameter), parameter.help or ""))
        elif (record := parameter.get_help_record(ctx)) is not None:
            sections[heading_of(parameter)].append(record)
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


def _write_examples(epilog: str | None, formatter: Any) -> None:
    if epilog:
        with formatter.section("Examples"):
            for line in _lines(epilog):
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")
    formatter.write(f"\nExit codes and errors: {ERRORS_PAGE}\n")


def _lines(text: str) -> Iterator[str]:
    yield from inspect.cleandoc(text).splitlines()
