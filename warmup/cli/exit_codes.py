"""Exit codes of commands that no error class has."""

from __future__ import annotations

EXIT_FOUND = 1  # diff, audit, build, compare or doctor found what it looks for; show found nothing
EXIT_USAGE = 2
EXIT_MISMATCH = 10  # run: the command ended with 0, and a process refused the table; as in check
EXIT_FAULT = 70  # a fault of warmup's own
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
