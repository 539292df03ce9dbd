"""Lines on stderr for people, which reach them whatever logging and warnings are set to.

`warn` keeps the types and the filters of `warnings`, and never ends a server: where the filters
make errors of warnings (``python -W error``), the text is printed instead.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Final

from warmup.core.error_text import printable
from warmup.core.errors import WarmupWarning

_PACKAGE: Final = f"{Path(__file__).resolve().parents[1]}/"


def print_notice(text: str) -> None:
    """Print *text* as one line on stderr; a process without a usable stderr loses it."""
    if sys.stderr is not None:  # None in a process that was started without one
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            sys.stderr.write(f"warmup: {printable(text)}\n")
            sys.stderr.flush()


def warn(warning: WarmupWarning) -> None:
    """Issue *warning* for the line outside of warmup that led here; raise in no case."""
    frame = sys._getframe()  # noqa: SLF001  `skip_file_prefixes` needs Python 3.12
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"))
    try:
        warnings.warn_explicit(warning, type(warning), *place)
    except WarmupWarning as error:
        print_notice(str(error))
