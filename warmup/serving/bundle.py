"""Bundles: `pack` writes what a build has compiled beside its table; `take` unpacks it at serving.

A server with a table compiles winners alone, so the files in its caches after the first call of
each bucket are the bundle.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from warmup.core.device import Runtime
from warmup.core.errors import BundleError
from warmup.core.events import logger
from warmup.core.files import other_writers, remark_on_writers
from warmup.core.text import counted
from warmup.table.bundle import BUNDLE_SUFFIX, needs_of, open_bundle, write_bundle

if TYPE_CHECKING:
    import torch

_SHOWN_NEEDS: Final = 3
BundleName: TypeAlias = str | os.PathLike[str] | Literal[False] | None
NO_BUNDLE: Final = "0"
_OF_KERNELS: Final = ("triton/", "cpp/")  # the names of `read_caches` in inductor/caches.py


def _count(names: Collection[str]) -> tuple[int, int]:
    kernels = sum(name.startswith(_OF_KERNELS) for name in names)
    return kernels, len(names) - kernels


def _files(kernels: int, graphs: int) -> str:
    return f"{counted(kernels, 'file')} of kernels{f', {graphs} of graphs' if graphs else ''}"


@dataclass(frozen=True, slots=True)
class PackedBundle:
    """A written bundle: numbers of kernel and graph files, bytes, and seconds."""

    path: Path
    kernels: int
    graphs: int
    size: int
    seconds: float

    def __str__(self) -> str:
        files = _files(self.kernels, self.graphs)
        return f"{self.path}: {files}, {self.size / 1e6:.2f} MB, {self.seconds:.1f} s"


def pack(
    table: Path, digest: str, runtime: Runtime, files: Mapping[str, bytes], started: float
) -> PackedBundle:
    """Write the bundle of *table* beside it, with earlier kernels, or raise a BundleError."""
    path, needs = table.with_suffix(BUNDLE_SUFFIX), needs_of(runtime)
    files = {**_earlier(path, digest, needs), **files}
    write_bundle(path, digest, needs, files)
    return PackedBundle(path, *_count(files), path.stat().st_size, time.monotonic() - started)


def _earlier(path: Path, digest: str, needs: Mapping[str, str]) -> dict[str, bytes]:
    if other_writers(path):
        return {}
    try:
        with open_bundle(path) as bundle:
            kept = ("",) if bundle.manifest.table == digest else _OF_KERNELS
            is_for_here = bundle.manifest.needs == needs
            members = bundle.members() if is_for_here else ()
            return {name: b"".join(pieces) for name, pieces in members if name.startswith(kept)}
    except BundleError:
        return {}


@dataclass(frozen=True, slots=True)
class UnpackedBundle:
    """A bundle after `take`: ``refused`` is why it is not used, None when it is used.

    ``kernels`` and ``graphs`` count its files, ``placed`` those that were not in the caches yet;
    ``device`` is None where it was only read. ``named``: an argument or a variable names it.
    """

    path: Path
    device: torch.device | None
    kernels: int = 0
    graphs: int = 0
    placed: int = 0
    refused: str | None = None
    named: bool = True
    _names: tuple[str, ...] = ()
    _began: float = field(default_factory=time.time)

    def compiled_besides(self) -> tuple[str, ...]:
        """Return what was compiled into the caches since then, by anyone, that the bundle lacks."""
        if self.device is None:
            return ()
        from warmup.inductor.caches import compiled_since

        return compiled_since(self._began, self._names, self.device)

    @property
    def outcome(self) -> str:
        return "used" if self.refused is None else f"not used: {self.refused}"

    def __str__(self) -> str:
        if self.refused is not None:
            return f"{self.path} is {self.outcome}"
        placed = "fits" if self.device is None else f"{self.placed} new here"
        return f"{self.path}: {_files(self.kernels, self.graphs)}, {placed}"


def name_of(named: BundleName) -> str:
    """Return the path *named* or in ``WARMUP_BUNDLE``; `NO_BUNDLE` for False, else empty."""
    path = os.environ.get("WARMUP_BUNDLE") if named is None else named
    if path is False or str(path) == NO_BUNDLE:
        return NO_BUNDLE
    return str(Path(path).absolute()) if path else ""


def take(
    name: str,
    tables: Sequence[Path],
    digest: str,
    runtime: Runtime,
    device: torch.device | None = None,
) -> UnpackedBundle | None:
    """Put the files of a bundle into inductor's caches for *device*; without one, only read them.

    The bundle is that of *name* (`name_of`), or else the file beside the table in *tables*, if
    there is one. It fits when it is intact, and was made from the table of *digest* for what
    `needs_of` lists of *runtime*. Another is refused with a warning in the log, and none of its
    files is unpacked: serving works without, only its start takes longer. So is a file that is not
    named and that other users can change.
    """
    beside = [path.with_suffix(BUNDLE_SUFFIX) for path in tables]
    found = [Path(name)] if name else [path for path in beside if os.path.lexists(path)]
    if name == NO_BUNDLE or not found:
        return None
    path, is_named = found[0], bool(name)
    try:
        done = _read(path, digest, runtime, device, is_named=is_named)
    except (BundleError, OSError, ValueError) as error:
        unpackable = f"it cannot be unpacked ({error})"
        reason = error.reason if isinstance(error, BundleError) else unpackable
        if len(tables) > 1 and not is_named:
            reason = f"{len(tables)} tables are installed together, and it fits one of them"
        done = UnpackedBundle(path, device, refused=reason, named=is_named)
        if device is not None:
            logger.warning("bundle %s; kernels are compiled instead", done)
    else:
        logger.info("bundle %s", done)
    return done


def _read(
    path: Path, digest: str, runtime: Runtime, device: torch.device | None, *, is_named: bool
) -> UnpackedBundle:
    writers = other_writers(path)
    if ways := [each.way for each in writers if each.is_everybody or not is_named]:
        advice = "" if is_named else "; name it with bundle= or WARMUP_BUNDLE if you trust them"
        raise BundleError(str(path), f"it is code, and {'; '.join(ways)}{advice}")
    if writers:
        logger.warning("%s", remark_on_writers(path))
    with open_bundle(path) as bundle:
        differences = bundle.manifest.differences(digest, needs_of(runtime))
        if differences:
            hidden = len(differences) - _SHOWN_NEEDS
            others = f" and {hidden} more" if hidden > 0 else ""
            raise BundleError(str(path), "; ".join(differences[:_SHOWN_NEEDS]) + others)
        placed = 0
        if device is not None:
            from warmup.inductor.caches import add_to_caches

            placed = add_to_caches(bundle.members(), device)
        else:
            for _, pieces in bundle.members():
                collections.deque(pieces, maxlen=0)
    names = tuple(bundle.manifest.members)
    counts = _count(names)
    return UnpackedBundle(path, device, *counts, placed, named=is_named, _names=names)
