"""`pack`: write the bundle of a table, by serving from it once in empty caches.

A server that answers from a table compiles winners and nothing else, so what its caches hold after
the first call of each bucket is the bundle.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.child_process import Caches
from warmup.core.errors import BundleError, printable
from warmup.core.runtime import Runtime
from warmup.keys.registry import kind_of
from warmup.table.bundle_file import BUNDLE_SUFFIX, needs_of, write_bundle
from warmup.table.codec import digest_of
from warmup.table.store import read

_SHOWN_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Packed:
    """A bundle that was written: files of kernels and of graphs in it, bytes, and the seconds."""

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


def bundle_path(table: Path) -> Path:
    """Return where the bundle of the table at *table* is: beside it, ``NAME.bundle``."""
    return table.with_suffix(BUNDLE_SUFFIX)


def spell_inputs(
    *,
    seqlens: str | Sequence[int] | None,
    dims: str | Sequence[str] | None,
    inputs: Sequence[str],
    dtype: str | None,
    policy: str,
) -> list[str]:
    """Return what a build was given for its inputs as words of the command line."""
    words = [f"--policy={policy}", *(f"--input={one}" for one in inputs)]
    if seqlens is not None:
        joined = seqlens if isinstance(seqlens, str) else ",".join(map(str, seqlens))
        words.append(f"--seqlens={joined}")
    words += [f"--dims={one}" for one in ([dims] if isinstance(dims, str) else dims or ())]
    if dtype is not None:
        words.append(f"--dtype={dtype}")
    return words


def pack(
    table: Path, model: str, runtime: Runtime, words: Sequence[str], graphs_for: str | None = None
) -> Packed:
    """Write the bundle of *table* beside it, and return what it holds.

    ``warmup check --prime`` compiles and calls *model* in a process and in caches of its own;
    *words* are its options that say for which inputs and where (`spell_inputs`). Where the table
    has rows for padded weights, once with the weights padded and once as they are. With
    *graphs_for*, a mode of torch.compile, the graphs that a server in that mode compiles are packed
    as well.

    Raises:
        BundleError: the table does not serve the model, or the bundle cannot be written.
    """
    from warmup.inductor.cache_files import read_graphs, read_kernels

    started = time.monotonic()
    path, content = bundle_path(table), read(table)
    asked = [str(table), "--prime", "--model", model, *words]
    if graphs_for is not None:
        asked += ["--mode", graphs_for]
    has_weights = not all(kind_of(key).is_asked for key in content.rows)
    ways = [[], ["--no-pad-weights"]] if has_weights else [[]]
    with tempfile.TemporaryDirectory(prefix="warmup-bundle-") as folder:
        caches = Caches(Path(folder))
        for way in ways:
            _prime(path, [*asked, *way], caches)
        kernels = read_kernels(caches.inductor, caches.triton)
        graphs = read_graphs(caches.inductor) if graphs_for is not None else {}
    write_bundle(path, digest_of(content), needs_of(runtime), {**kernels, **graphs})
    return Packed(path, len(kernels), len(graphs), path.stat().st_size, time.monotonic() - started)


def _prime(path: Path, words: Sequence[str], caches: Caches) -> None:
    done = subprocess.run(  # noqa: S603  this very program
        [sys.executable, "-m", "warmup", "check", *words],
        env=caches.environment(),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = printable(said[-1])[:_SHOWN_LENGTH] if said else f"exit status {done.returncode}"
        raise BundleError(str(path), f"it was not made, priming failed: {last}")
