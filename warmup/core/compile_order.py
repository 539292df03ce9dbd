"""`CompileOrder`: when a build compiles the candidates of a graph's questions."""

from __future__ import annotations

from enum import StrEnum


class CompileOrder(StrEnum):
    """When the candidates of a graph are compiled: as asked, or all at the same time.

    ``AS_ASKED``: those of a question when inductor asks it. ``BESIDE``: all are sent to the workers
    before the first question is measured, and compile beside measurements. ``BEFORE``: all are
    compiled before the first question is measured, so that the host is idle while it is timed.
    """

    AS_ASKED = "as asked"
    BESIDE = "beside"
    BEFORE = "before"
