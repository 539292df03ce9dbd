"""Exit codes of commands that no error class has."""

from __future__ import annotations

EXIT_FOUND = 1  # diff, audit, build, compare or doctor found what it looks for
EXIT_MISMATCH = 10  # run: the command ended with 0, and a process refused the table; as in check
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
