"""`unpack`: puts the files of a bundle that fits into inductor's caches."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.core.errors import BundleError
from warmup.core.events import logger
from warmup.core.permissions import other_writers, remark_on_writers
from warmup.core.runtime import Runtime
from warmup.table.bundle_file import Manifest, needs_of, read_members

if TYPE_CHECKING:
    import torch

_SHOWN_NEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class UnpackedBundle:
    """A bundle after `unpack`: ``refused`` is why it is not used, None when it is used.

    ``kernels`` and ``graphs`` count its files, ``placed`` those that were not in the caches yet.
    """

    path: Path
    device: torch.device
    kernels: int = 0
    graphs: int = 0
    placed: int = 0
    refused: str | None = None
    _names: tuple[str, ...] = ()
    _began: float = field(default_factory=time.time)

    def compiled_besides(self) -> tuple[str, ...]:
        """Return the files compiled into the device's caches since then that the bundle lacks.

        They include files of other processes that share the cache folder.
        """
        from warmup.inductor.cache_files import compiled_since

        return compiled_since(self._began, self._names, self.device)

    def __str__(self) -> str:
        if self.refused is not None:
            return f"{self.path} is not used: {self.refused}"
        graphs = f", {self.graphs} of graphs" if self.graphs else ""
        return f"{self.path}: {self.kernels} files of kernels{graphs}, {self.placed} new here"


def unpack(
    path: str | os.PathLike[str], table: str, runtime: Runtime, device: torch.device
) -> UnpackedBundle:
    """Put the files of the bundle at *path* into inductor's caches for *device*, if it fits.

    A bundle fits when it is intact, and was made from the table of the digest *table* for what
    `needs_of` lists of *runtime*. Serving works without the bundle, only its start takes longer: a
    bundle that does not fit is refused with a warning in the log instead of an error, and none of
    its files is unpacked.
    """
    from warmup.inductor.cache_files import add_to_caches, is_graph

    path = Path(path)
    try:
        members = read_fitting(path, table, runtime)
        placed = add_to_caches(members.items(), device)
    except BundleError as error:
        return _refused(path, device, error.reason)
    except (OSError, ValueError) as error:
        return _refused(path, device, f"it cannot be unpacked ({error})")
    graphs = sum(map(is_graph, members))
    names = tuple(members)
    done = UnpackedBundle(path, device, len(names) - graphs, graphs, placed, _names=names)
    logger.info("bundle %s", done)
    return done


def read_fitting(path: Path, table: str, runtime: Runtime) -> dict[str, bytes]:
    """Return the files in the bundle at *path* by name; nothing is unpacked.

    Raises:
        BundleError: the bundle does not fit, is damaged, or every user can write it.
    """
    writers = other_writers(path)
    if anybody := [writer.way for writer in writers if writer.is_everybody]:
        raise BundleError(str(path), f"it is code, and {'; '.join(anybody)}")
    if writers:
        logger.warning("%s", remark_on_writers(path))

    def compare(manifest: Manifest) -> None:
        differences = manifest.differences(table, needs_of(runtime))
        if differences:
            others = (
                f" and {len(differences) - _SHOWN_NEEDS} more"
                if len(differences) > _SHOWN_NEEDS
                else ""
            )
            raise BundleError(str(path), "; ".join(differences[:_SHOWN_NEEDS]) + others)

    # The file is opened once: replaced meanwhile, it is compared and read as the same bundle.
    return dict(read_members(path, compare))


def _refused(path: Path, device: torch.device, reason: str) -> UnpackedBundle:
    refused = UnpackedBundle(path, device, refused=reason)
    logger.warning("bundle %s; kernels are compiled instead", refused)
    return refused
