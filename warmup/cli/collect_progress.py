"""`CollectProgress`: progress of `warmup pad collect`, whose lines are kept one by one."""

from __future__ import annotations

from pathlib import Path

from warmup.cli.output import say
from warmup.cli.progress import BuildProgress
from warmup.cli.timings_file import TimingsFile
from warmup.core.method import Method
from warmup.core.runtime import Runtime
from warmup.tuning.pad_collection import check_method


class CollectProgress(BuildProgress):
    """Progress of `warmup pad collect`, whose lines go into the file *out*."""

    def __init__(self, timings: TimingsFile | None, out: Path) -> None:
        super().__init__(timings, "samples")
        self._out = out

    def measuring_on(self, here: Runtime, method: Method) -> None:
        """Check that earlier samples are of the same machine and method."""
        check_method(self._out, here, method)
        super().measuring_on(here, method)

    def interrupted(self) -> None:
        """End the live line and say that finished samples are kept."""
        self.__exit__(None, None, None)
        say(
            f"interrupted: finished samples are in {self._out}; run the same command again to "
            "measure the rest"
        )
