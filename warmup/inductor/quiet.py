"""`silence_autotuning`: drops inductor's autotuning messages while a build shows its progress.

Candidates that fail, for example for lack of shared memory, are counted in each row's evidence;
inductor's long messages about them add nothing.
"""

from __future__ import annotations

import functools
import logging

from torch._inductor import select_algorithm

from warmup.inductor.patches import Patches

_AUTOTUNING_LOGGERS = (
    "torch._inductor.select_algorithm",
    "torch._inductor.runtime.triton_heuristics",
)


def silence_autotuning(patches: Patches) -> dict[str, bool]:
    """Drop inductor's autotuning messages until *patches* is restored.

    Returns the options under which compiles must run for that.
    """
    patches.wrap(select_algorithm, "PRINT_AUTOTUNE", lambda _: False)
    for name in _AUTOTUNING_LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(_drop)
        patches.on_restore(functools.partial(logger.removeFilter, _drop))
    return {"max_autotune_report_choices_stats": False}


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR
