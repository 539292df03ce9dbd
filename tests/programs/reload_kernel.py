"""Compile a Triton kernel for a stated GPU, carry it to other caches in a bundle, ask for it again.

    python reload_kernel.py FOLDER

Prints as JSON whether Triton found it, what is in the bundle, and what was compiled since.
"""

import json
import sys
import time
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warmup.inductor.caches import add_to_caches, compiled_since, read_kernels
from warmup.table.bundle import open_bundle, write_bundle


@triton.jit
def add_one(a, b, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201, N803  as Triton has it
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(b + at, tl.load(a + at, at < n) + 1, at < n)


def compile_for(folder: Path, block: int) -> bool:
    """Compile the kernel with its cache in *folder*, and return whether it was there."""
    hits: list[bool] = []
    with knobs.cache.scope(), knobs.compilation.scope():
        knobs.cache.dir = str(folder)
        knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
        types = {"a": "*fp32", "b": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        source = ASTSource(add_one, types, constexprs={"BLOCK": block})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"].startswith(b"\x7fELF")
    return hits == [True]


def main() -> None:
    folder = Path(sys.argv[1])
    first, other = folder / "first", folder / "other"
    here = torch.device("cuda", 0)  # names a folder, nothing more
    was_there = [compile_for(first, 64)]
    taken = read_kernels(folder / "none", first)
    write_bundle(folder / "t.bundle", "ab" * 32, {}, taken)
    began = time.time()
    placed = []
    for _ in range(2):
        with open_bundle(folder / "t.bundle") as bundle:
            placed.append(add_to_caches(bundle.members(), here))
    was_there.append(compile_for(other, 64))
    besides = [compiled_since(began, taken, here)]
    was_there.append(compile_for(other, 128))
    besides.append(compiled_since(began, taken, here))
    kept = sum(path.stat().st_size for path in first.rglob("*"))
    sizes = {"bundle": sum(map(len, taken.values())), "cache": kept}
    names = sorted(name.rpartition("/")[2].rpartition(".")[2] for name in taken)
    json.dump([was_there, placed, [len(one) for one in besides], names, sizes], sys.stdout)


main()
