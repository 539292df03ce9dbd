"""The `warmup` command: each subcommand parses its options, calls one function, prints its report.

Reports go to stdout, progress and messages to stderr. Exit codes: 0 success; 1 an audit, build,
compare, diff or doctor found what it looks for, or show found nothing; 2 usage; 3 a `WarmupError`;
`check` has 10, 11 and 12 too; `run` returns its command's; 70 a fault of warmup's own; 130 or 143
after SIGINT or SIGTERM, finished work kept.
"""

from __future__ import annotations

import io
import sys
import traceback
from typing import Any

from warmup.cli.streams import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_USAGE, standard_streams
from warmup.core.errors import WarmupError
from warmup.core.text import first_line, one_line, printable


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. An error is a line on stderr that begins with ``error:``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    with standard_streams():
        sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    import typer

    from warmup.cli.app import app

    usage_error: Any = typer.BadParameter.__bases__[0]  # click's own, or that in typer
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except WarmupError as error:
        first, *others = error.lines()
        _complain(first)
        for line in others:
            sys.stderr.write(f"    {printable(line)}\n")
        return error.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise  # `standard_streams` ends the command
    except Exception as error:  # noqa: BLE001  the last place that can say so
        if isinstance(error, usage_error):
            return _explain_usage(error)
        if _is_of_torch(error):
            _complain(f"torch cannot be used here: {first_line(error)}; see `warmup doctor`")
            return WarmupError.exit_code
        traceback.print_exc()
        _complain(f"a fault of warmup ({type(error).__name__}); please report the lines above")
        return EXIT_FAULT


def _is_of_torch(error: Exception) -> bool:
    if "torch" in sys.modules or not isinstance(error, (ImportError, OSError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    broken = [frame for frame in frames if frame.filename.endswith("torch/__init__.py")]
    return getattr(error, "name", None) == "torch" or bool(broken)


def _explain_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return EXIT_USAGE
    context = error.ctx
    text = str(error.format_message()).strip().rstrip(".").replace("Value error, ", "")
    see = "" if context is None else f"; see `{context.command_path} --help`"
    _complain(f"{text}{see}")
    return EXIT_USAGE


def _complain(text: str) -> None:
    sys.stderr.write(f"error: {one_line(text)}\n")
