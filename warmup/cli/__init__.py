"""The `warmup` command: each subcommand parses its options, calls one function, prints its report.

Reports go to stdout, progress and messages to stderr. Exit codes: 0 success; 1 an audit, build,
compare, diff or doctor found what it looks for; 2 usage; 3 a `WarmupError`; `check` has 10, 11 and
12 too; `run` returns its command's; 130 or 143 after SIGINT or SIGTERM, finished work kept.
"""

from __future__ import annotations

import io
import sys

from warmup.core.errors import WarmupError, one_line


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; every `WarmupError` becomes one line on stderr."""
    from warmup.cli.app import app
    from warmup.cli.streams import standard_streams

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    with standard_streams():
        try:
            app(arguments)
        except WarmupError as error:
            sys.stderr.write(f"error: {one_line(error)}\n")
            sys.exit(error.exit_code)
