"""`unpack`: puts the files of a bundle that fits into inductor's caches."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.core.device import Runtime
from warmup.core.errors import BundleError
from warmup.core.events import logger
from warmup.core.files import other_writers, remark_on_writers
from warmup.core.text import counted
from warmup.table.bundle import OpenBundle, needs_of, open_bundle

if TYPE_CHECKING:
    import torch

_SHOWN_NEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class UnpackedBundle:
    """A bundle after `unpack`: ``refused`` is why it is not used, None when it is used.

    ``kernels`` and ``graphs`` count its files, ``placed`` those that were not in the caches yet.
    ``retired`` counts files for a feature that warmup no longer has: they are not used.
    """

    path: Path
    device: torch.device
    kernels: int = 0
    graphs: int = 0
    retired: int = 0
    placed: int = 0
    refused: str | None = None
    _names: tuple[str, ...] = ()
    _began: float = field(default_factory=time.time)

    def compiled_besides(self) -> tuple[str, ...]:
        """Return the files compiled into the device's caches since then that the bundle lacks.

        They include files of other processes that share the cache folder.
        """
        from warmup.inductor.caches import compiled_since

        return compiled_since(self._began, self._names, self.device)

    def __str__(self) -> str:
        if self.refused is not None:
            return f"{self.path} is not used: {self.refused}"
        graphs = f", {self.graphs} of graphs" if self.graphs else ""
        files = f"{counted(self.kernels, 'file')} of kernels{graphs}"
        return f"{self.path}: {files}, {self.placed} new here"


def unpack(
    path: str | os.PathLike[str], table: str, runtime: Runtime, device: torch.device
) -> UnpackedBundle:
    """Put the files of the bundle at *path* into inductor's caches for *device*, if it fits.

    A bundle fits when it is intact, and was made from the table of the digest *table* for what
    `needs_of` lists of *runtime*. Serving works without the bundle, only its start takes longer: a
    bundle that does not fit is refused with a warning in the log instead of an error, and none of
    its files is unpacked.
    """
    from warmup.inductor.caches import add_to_caches, is_graph, is_retired

    path = Path(path)
    try:
        with open_fitting(path, table, runtime) as bundle:
            placed = add_to_caches(bundle.members(), device)
    except BundleError as error:
        return _refused(path, device, error.reason)
    except (OSError, ValueError) as error:
        return _refused(path, device, f"it cannot be unpacked ({error})")
    names = tuple(bundle.manifest.members)
    graphs, retired = sum(map(is_graph, names)), sum(map(is_retired, names))
    kernels = len(names) - graphs - retired
    done = UnpackedBundle(path, device, kernels, graphs, retired, placed, _names=names)
    if retired:
        files = counted(retired, "file")
        message = "bundle %s: %s with calls that were compiled ahead of time, which are not used"
        logger.warning(message, path, files)
    logger.info("bundle %s", done)
    return done


def verify(path: Path, table: str, runtime: Runtime) -> None:
    """Read the bundle at *path* to its end; nothing is unpacked.

    Raises:
        BundleError: the bundle does not fit, is damaged, or every user can write it.
    """
    with open_fitting(path, table, runtime) as bundle:
        for _, pieces in bundle.members():
            for _ in pieces:
                pass


@contextlib.contextmanager
def open_fitting(path: Path, table: str, runtime: Runtime) -> Iterator[OpenBundle]:
    """Open the bundle at *path*, whose manifest fits the table digest *table* and *runtime*.

    Raises:
        BundleError: the bundle does not fit, is damaged, or every user can write it or its folder.
    """
    writers = other_writers(path)
    if anybody := [writer.way for writer in writers if writer.is_everybody]:
        raise BundleError(str(path), f"it is code, and {'; '.join(anybody)}")
    if writers:
        logger.warning("%s", remark_on_writers(path))
    with open_bundle(path) as bundle:
        differences = bundle.manifest.differences(table, needs_of(runtime))
        if differences:
            hidden = len(differences) - _SHOWN_NEEDS
            others = f" and {hidden} more" if hidden > 0 else ""
            raise BundleError(str(path), "; ".join(differences[:_SHOWN_NEEDS]) + others)
        yield bundle


def _refused(path: Path, device: torch.device, reason: str) -> UnpackedBundle:
    refused = UnpackedBundle(path, device, refused=reason)
    logger.warning("bundle %s; kernels are compiled instead", refused)
    return refused
