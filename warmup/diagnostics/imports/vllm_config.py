"""`read_vllm_config`: problems of vLLM's tuned kernels, whose files are named by sizes and dtypes.

    N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json

The configs are for vLLM's own Triton kernels, so that no row can name them: a row names a kernel of
inductor. What is left are the sizes that somebody tuned for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.core.rows import MAX_INT
from warmup.diagnostics.imports.entry import Entry, ImportedEntry, Unmapped, origin_of
from warmup.keys.gemm import Dim, GemmProblem, Layout

_FILE_NAME_PART: Final = re.compile(
    r"(?:[A-Za-z_]+=[^,\[\]]{1,100}|block_shape=\[[0-9, ]{1,20}\])(?:,|$)"
)
_ROWS_TEXT: Final = re.compile(r"[1-9][0-9]{0,8}")
_MAX_TUNED_SIZES: Final = 1000
_OWN_KERNEL: Final = "the config is one of vLLM's own kernel, which inductor does not have"
_ROWWISE: Final = "fp8_w8a8_per_token"


def named_values(path: Path) -> dict[str, str] | None:
    """Return what the name of the file *path* says, by name; None where vLLM names none so."""
    words = path.name.removesuffix(".json")
    parts = [match.rstrip(",") for match in _FILE_NAME_PART.findall(words)]
    values = dict(part.partition("=")[::2] for part in parts)
    is_known = ",".join(parts) == words and "N" in values and "device_name" in values
    return values if is_known else None


def read_vllm_config(document: Mapping[str, Any], path: Path) -> Iterator[Entry]:
    """Yield the entries of *document*, which was in the file *path* that vLLM named."""
    named = named_values(path) or {}
    file = path.name
    sizes = [m for m in document if _ROWS_TEXT.fullmatch(m)]
    what = f"{len(sizes)} configs"
    reason = _why_unmapped(named)
    if reason is not None or not sizes or len(sizes) > _MAX_TUNED_SIZES:
        reason = reason or f"the file has {len(sizes)} sizes, and 1 to {_MAX_TUNED_SIZES} are read"
        yield Unmapped(origin_of(file), what, reason)
        return
    for m in sizes:
        origin = origin_of(file, f"M={m}")
        try:
            yield ImportedEntry(_key(named, int(m)), origin, None, _OWN_KERNEL)
        except ProblemError as error:
            yield Unmapped(origin, f"M={m}", str(error))


def _why_unmapped(named: Mapping[str, str]) -> str | None:
    """Return why the file with these values in its name has no problem of a table."""
    if "E" in named:
        return "a kernel of the engine for mixtures of experts, which inductor does not choose"
    if "K" not in named:
        return "its name does not say K"
    if "block_shape" in named:
        return "scales of blocks: `build --problems` cannot make such operands from a key"
    if named.get("dtype") != _ROWWISE or not {"input_dtype", "out_dtype"} <= named.keys():
        return f"dtype={named.get('dtype', '')[:40]}: only {_ROWWISE} is known"
    return None


def _key(named: Mapping[str, str], m: int) -> str:
    if not all(_ROWS_TEXT.fullmatch(named[name]) and int(named[name]) <= MAX_INT for name in "NK"):
        raise ProblemError("N or K in the name of the file is no size")
    n, k, dtype = int(named["N"]), int(named["K"]), dtype_name(named["input_dtype"])
    return GemmProblem(
        op="scaled_mm",
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=dtype,
        a=Layout("row"),
        b=Layout("col"),
        scale=f"f32[{m},1]:f32[1,{n}]",
        out=dtype_name(named["out_dtype"]),
    ).key
