"""Keeping inductor's own autotuning talk off the terminal while a build shows its progress.

Candidates that fail (too much shared memory, for example) are counted in each row's evidence; the
wall of text that inductor logs about each one says nothing more.
"""

from __future__ import annotations

import logging

from torch._inductor import select_algorithm

from warmup.inductor.options import apply_options
from warmup.inductor.patches import Patches
from warmup.inductor.versions import Version

_TALKATIVE = ("torch._inductor.select_algorithm", "torch._inductor.runtime.triton_heuristics")


def silence(patches: Patches, version: Version) -> None:
    """Drop inductor's autotuning reports until *patches* is restored."""
    patches.wrap(select_algorithm, "PRINT_AUTOTUNE", lambda _: False)
    apply_options({"max_autotune_report_choices_stats": False}, patches, version)
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        logger.addFilter(_drop)
        patches.on_restore(lambda logger=logger: logger.removeFilter(_drop))


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR
