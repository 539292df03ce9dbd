"""Bundles: `pack` writes that of a table by serving from it once with empty caches; `unpack`.

A server with a table compiles winners alone, so the files in its caches after the first call of
each bucket are the bundle.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.core.device import Runtime
from warmup.core.errors import BundleError
from warmup.core.events import logger
from warmup.core.files import other_writers, remark_on_writers, temporary_folder
from warmup.core.processes import Caches
from warmup.core.text import counted, printable
from warmup.keys.registry import kind_of
from warmup.table.bundle import BUNDLE_SUFFIX, OpenBundle, needs_of, open_bundle, write_bundle
from warmup.table.codec import digest_of
from warmup.table.store import read

if TYPE_CHECKING:
    import torch

_SHOWN_LENGTH: Final = 300
_SHOWN_NEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class PackedBundle:
    """A written bundle: numbers of kernel and graph files, bytes, and seconds."""

    path: Path
    kernels: int
    graphs: int
    size: int
    seconds: float

    def __str__(self) -> str:
        graphs = f", {self.graphs} of graphs" if self.graphs else ""
        return (
            f"{self.path}: {self.kernels} files of kernels{graphs}, "
            f"{self.size / 1e6:.2f} MB, {self.seconds:.1f} s"
        )


def input_options(
    *,
    seqlens: str | Sequence[int] | None,
    dims: str | Sequence[str] | None,
    inputs: Sequence[str],
    dtype: str | None,
    policy: str,
) -> list[str]:
    """Return the inputs of a build as options of the command line."""
    words = [f"--policy={policy}", *(f"--input={spec}" for spec in inputs)]
    if seqlens is not None:
        joined = seqlens if isinstance(seqlens, str) else ",".join(map(str, seqlens))
        words.append(f"--seqlens={joined}")
    words += [f"--dims={text}" for text in ([dims] if isinstance(dims, str) else dims or ())]
    if dtype is not None:
        words.append(f"--dtype={dtype}")
    return words


def pack(
    table: Path,
    model: str,
    runtime: Runtime,
    words: Sequence[str],
    *,
    graphs_for: str | None = None,
) -> PackedBundle:
    """Write the bundle of *table* beside it, ``NAME.bundle``; return its contents in numbers.

    ``warmup check --prime`` compiles and calls *model* in a process and in caches of its own, with
    *words* as options for the inputs (`input_options`) and the device; a model whose weights the
    table pads is primed twice, with padded and with unpadded weights. With *graphs_for*, a mode of
    torch.compile, the graphs are packed as well that a server in that mode compiles.

    Raises:
        BundleError: the table does not serve the model, or the bundle cannot be written.
    """
    from warmup.inductor.caches import read_graphs, read_kernels

    started = time.monotonic()
    path, content = table.with_suffix(BUNDLE_SUFFIX), read(table)
    arguments = [str(table), "--prime", "--model", model, *words]
    arguments += [] if graphs_for is None else ["--mode", graphs_for]
    has_weights = not all(kind_of(key).is_asked for key in content.rows)
    with temporary_folder("warmup-bundle-") as folder:
        caches = Caches(folder)
        for options in [[], ["--no-pad-weights"]] if has_weights else [[]]:
            _prime(path, [*arguments, *options], caches)
        graphs = read_graphs(caches.inductor) if graphs_for is not None else {}
        kernels = read_kernels(caches.inductor, caches.triton)
    write_bundle(path, digest_of(content), needs_of(runtime), {**kernels, **graphs})
    seconds = time.monotonic() - started
    return PackedBundle(path, len(kernels), len(graphs), path.stat().st_size, seconds)


def _prime(path: Path, arguments: Sequence[str], caches: Caches) -> None:
    done = subprocess.run(  # noqa: S603  warmup itself
        [sys.executable, "-m", "warmup", "check", *arguments],
        env=caches.environment(),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = printable(lines[-1])[:_SHOWN_LENGTH] if lines else f"exit status {done.returncode}"
        raise BundleError(str(path), f"it was not made, priming failed: {last}")


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
    `needs_of` lists of *runtime*. Another is refused with a warning in the log, and none of its
    files is unpacked: serving works without, only its start takes longer.
    """
    from warmup.inductor.caches import add_to_caches, is_graph

    path = Path(path)
    try:
        with _open_fitting(path, table, runtime) as bundle:
            placed = add_to_caches(bundle.members(), device)
    except (BundleError, OSError, ValueError) as error:
        unpackable = f"it cannot be unpacked ({error})"
        reason = error.reason if isinstance(error, BundleError) else unpackable
        refused = UnpackedBundle(path, device, refused=reason)
        logger.warning("bundle %s; kernels are compiled instead", refused)
        return refused
    names = tuple(bundle.manifest.members)
    graphs = sum(map(is_graph, names))
    done = UnpackedBundle(path, device, len(names) - graphs, graphs, placed, _names=names)
    logger.info("bundle %s", done)
    return done


def verify(path: Path, table: str, runtime: Runtime) -> None:
    """Read the bundle at *path* to its end, or raise a BundleError where it may not be used."""
    with _open_fitting(path, table, runtime) as bundle:
        for _, pieces in bundle.members():
            for _ in pieces:
                pass


@contextlib.contextmanager
def _open_fitting(path: Path, table: str, runtime: Runtime) -> Iterator[OpenBundle]:
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
