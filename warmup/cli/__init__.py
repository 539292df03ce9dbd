"""The `warmup` command: parse, call one verb, print.

stdout is data, stderr is talk. Exit codes: 0 fine; 1 an audit, diff or doctor found something;
2 usage; 3 a `WarmupError`; `check` has 10, 11 and 12 of its own; `run` hands on its command's;
130 or 143 interrupted by SIGINT or SIGTERM, finished work kept.
"""

from __future__ import annotations

import io
import sys

from warmup.cli.exit_codes import EXIT_FOUND
from warmup.core.errors import WarmupError, printable


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; every `WarmupError` becomes one line on stderr."""
    from warmup.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    try:
        app(arguments)
    except WarmupError as error:
        sys.stderr.write(f"error: {printable(' '.join(str(error).split()))}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(EXIT_FOUND)
