"""`silence_autotuning`: drops inductor's autotuning messages while a build shows its progress.

`compiling_with` does so for compiles with options of inductor.

Candidates that fail, for example for lack of shared memory, are counted in each row's evidence;
inductor's long messages about them add nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping

from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm

from warmup.core.method import OptionValue
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


@contextlib.contextmanager
def compiling_with(options: Mapping[str, OptionValue]) -> Iterator[None]:
    """Compile with *options* of inductor in this context, and drop its autotuning messages.

    Dynamo reads ``freezing`` before inductor reads the options of a compile, so they are set here.
    """
    patches = Patches()
    try:
        with inductor_config.patch({**silence_autotuning(patches), **options}):
            yield
    finally:
        patches.restore()


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR
