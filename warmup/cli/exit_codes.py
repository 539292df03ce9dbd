"""."""

from __future__ import annotations

EXIT_FOUND = 1


EXIT_INTERRUPTED = 130


EXIT_TERMINATED = 143
