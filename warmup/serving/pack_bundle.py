"""`pack`: writes the bundle of a table, by serving from the table once with empty caches.

A server with a table compiles winners alone, so the files in its caches after the first call of
each bucket are the bundle.
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

from warmup.core.device import Runtime
from warmup.core.errors import BundleError
from warmup.core.processes import Caches
from warmup.core.text import printable
from warmup.keys.registry import kind_of
from warmup.table.bundle import BUNDLE_SUFFIX, needs_of, write_bundle
from warmup.table.codec import digest_of
from warmup.table.store import read

_SHOWN_LENGTH: Final = 300


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


def bundle_path(table: Path) -> Path:
    """Return the path of the bundle of the table at *table*: ``NAME.bundle`` beside it."""
    return table.with_suffix(BUNDLE_SUFFIX)


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
    """Write the bundle of *table* beside it, and return its contents in numbers.

    ``warmup check --prime`` compiles and calls *model* in a process and in caches of its own, with
    *words* as options for the inputs (`input_options`) and the device. The kernels are packed that
    a server compiles; a model whose weights the table pads is primed twice, with padded and with
    unpadded weights. With *graphs_for*, a mode of torch.compile, the graphs that such a server in
    that mode compiles are packed as well.

    Raises:
        BundleError: the table does not serve the model, or the bundle cannot be written.
    """
    from warmup.inductor.caches import read_graphs, read_kernels

    started = time.monotonic()
    path, content = bundle_path(table), read(table)
    arguments = [str(table), "--prime", "--model", model, *words]
    mode = [] if graphs_for is None else ["--mode", graphs_for]
    has_weights = not all(kind_of(key).is_asked for key in content.rows)
    variants = [[], ["--no-pad-weights"]] if has_weights else [[]]
    with tempfile.TemporaryDirectory(prefix="warmup-bundle-", ignore_cleanup_errors=True) as folder:
        caches = Caches(Path(folder))
        for options in variants:
            _prime(path, [*arguments, *mode, *options], caches)
        graphs = read_graphs(caches.inductor) if graphs_for is not None else {}
        kernels = read_kernels(caches.inductor, caches.triton)
    write_bundle(path, digest_of(content), needs_of(runtime), {**kernels, **graphs})
    return PackedBundle(
        path,
        len(kernels),
        len(graphs),
        path.stat().st_size,
        time.monotonic() - started,
    )


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
