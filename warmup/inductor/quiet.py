"""Keeping inductor's own autotuning talk off the terminal while a build shows its progress.

Candidates that fail (too much shared memory, for example) are counted in each row's evidence; the
wall of text that inductor logs about each one says nothing more.
"""

from __future__ import annotations

import functools
import logging

from torch._inductor import select_algorithm

from warmup.inductor.patches import Patches

_TALKATIVE = ("torch._inductor.select_algorithm", "torch._inductor.runtime.triton_heuristics")


def silence(patches: Patches) -> dict[str, bool]:
    """Drop inductor's autotuning reports until *patches* is restored.

    Returns the options that compiles must run under for that.
    """
    patches.wrap(select_algorithm, "PRINT_AUTOTUNE", lambda _: False)
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        logger.addFilter(_drop)
        patches.on_restore(functools.partial(logger.removeFilter, _drop))
    return {"max_autotune_report_choices_stats": False}


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR
