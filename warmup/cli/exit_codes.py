"""Exit codes of commands that no error class has."""

from __future__ import annotations

EXIT_FOUND = 1  # a difference, a failed condition or a doubt that the command looks for, or no row
EXIT_USAGE = 2  # usage: an unknown option, a missing argument, a refused value
EXIT_UNDECIDED = 4  # `build`: every row measured is unstable, so that no time carries a decision
EXIT_MISMATCH = 10  # `check`, `run`: the table is for another device, runtime or digest
EXIT_FAULT = 70  # a fault of warmup's own, with a traceback
EXIT_INTERRUPTED = 130  # interrupted by SIGINT; finished problems of a build are in the table
EXIT_TERMINATED = 143  # interrupted by SIGTERM, likewise
