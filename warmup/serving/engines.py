"""`register`: the entry point that vLLM and SGLang call in each of their processes.

It has the name ``warmup`` in their groups ``vllm.general_plugins`` and ``sglang.srt.plugins``. The
settings are those that `warmup run` passes on in the environment.

`batch_invariant_tiles` gives vLLM's batch-invariant mode the tiles of a table. vLLM 0.33.0 looks
them up in a dict in its source and reads no file or environment variable for it
(vllm/model_executor/determinism/batch_invariant_configs.py, ``_get_matmul_config``): by the family
of the GPU, then by exactly (N, K). A weight has one BLOCK_K, and buckets that begin with an M: the
first with an M of at least the product's counts, else the last. A weight that is not there and a
dtype other than bf16 get 128x128x64 and the like.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warmup.core.errors import SettingsError, WarmupError
from warmup.core.events import NO_TABLE
from warmup.core.rows import Row, ranked
from warmup.core.text import printable
from warmup.keys.registry import kind_of
from warmup.serving.handle import installed
from warmup.serving.startup.sitecustomize import TableStartup
from warmup.table.codec import digest_of
from warmup.table.lookup import cache_tag
from warmup.table.schema import OnMiss, Table
from warmup.table.store import find

# vLLM makes every entry of `vllm.envs.environment_variables` a part of the keys of its compiled
# graphs, and shows them in cache_key_factors.json (vllm/envs.py, compile_factors).
VLLM_KEY: Final = "warmup_table"


def register() -> None:
    """Install the table of ``WARMUP_TABLE`` before this process's first compile; nothing without.

    A process that compiles nothing imports no inductor and touches no GPU. vLLM's cache keys have
    the table's digest from now on. A second call, and a call under `warmup run`, adds nothing.

    A table that cannot be read is reported on stderr and in ``WARMUP_AUDIT_LOG``, and the process
    goes on without it; with ``WARMUP_ON_MISS=strict`` it is an error, here and in each compile.

    Raises:
        SettingsError: a table with another digest is installed.
        TableError: with ``strict``, the table is missing or damaged.
    """
    if not os.environ.get("WARMUP_TABLE"):
        return
    on_miss = os.environ.get("WARMUP_ON_MISS", "fallback")
    uncovered = os.environ.get("WARMUP_UNCOVERED", "library")
    startup = TableStartup(on_miss, uncovered, "warmup plugin")
    try:
        digest = digest_of(find(None, os.environ).table)
        handle = installed()
        if handle is not None and handle.digest != digest:
            raise SettingsError(
                f"a table with the digest {handle.digest[:16]} is installed already, and "
                f"WARMUP_TABLE has the digest {digest[:16]}",
                "name the same table in both places, or unset WARMUP_TABLE",
            )
        if (engine := sys.modules.get("vllm.envs")) is not None:
            tag = cache_tag(digest)
            engine.environment_variables.setdefault(VLLM_KEY, lambda: _tag_in_use(tag))
    except (WarmupError, OSError) as error:
        startup.report_failure(error)
        if on_miss == OnMiss.STRICT:
            _start(startup)  # an engine may go on after an error of a plugin
        if on_miss == OnMiss.STRICT or isinstance(error, SettingsError):
            raise
        return
    _start(startup)


def _start(startup: TableStartup) -> None:
    # By name: `warmup run` has the same class under another module's name.
    if not any(type(finder).__name__ == TableStartup.__name__ for finder in sys.meta_path):
        startup.start()


def _tag_in_use(tag: str) -> str:
    handle = installed()
    return tag if handle is None or handle.refused is None else NO_TABLE


_ENGINE_CONFIG: Final = "config.json"
_COMPILATION: Final = "compilation_config"
_STATIC_SIZES: Final = "compile_sizes"
_OWN: Final = ("model", "load_format", "tensor_parallel_size")


def vllm_command(
    model: str | Path,
    sizes: Sequence[int],
    *,
    ranks: int = 1,
    engine: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the command that starts the engine of *model* for the static *sizes*, and ends.

    *model* is a folder in the form of transformers, or the ``config.json`` in it. *ranks* is the
    engine's tensor parallel size: each rank is a process with its share of every layer. *engine*
    are other arguments of vLLM's `LLM`, such as ``max_model_len`` or ``dtype``. A SettingsError
    where one of them cannot be used, or vLLM is not installed here.
    """
    folder = Path(model).parent if Path(model).name == _ENGINE_CONFIG else Path(model)
    if not (folder / _ENGINE_CONFIG).is_file():
        raise SettingsError(
            f"{printable(str(model))} has no {_ENGINE_CONFIG}",
            "name a folder of a model of transformers, or its config.json; it needs no weights",
        )
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        spelled = ",".join(map(str, sizes)) or "none"
        raise SettingsError(
            f"compile sizes {spelled} are not positive numbers of tokens, each once",
            "name those that the server will be started with, such as 1,8,64",
        )
    if ranks < 1:
        raise SettingsError(f"a tensor parallel size of {ranks}", "name at least 1")
    given = dict(engine or {})
    if refused := [name for name in _OWN if name in given]:
        raise SettingsError(
            f"{', '.join(refused)} cannot be among the arguments of the engine",
            "the model and the tensor parallel size are named apart, and weights are random",
        )
    compilation = given.pop(_COMPILATION, {})
    if not isinstance(compilation, Mapping) or _STATIC_SIZES in compilation:
        raise SettingsError(
            f"{_COMPILATION} is not an object, or has {_STATIC_SIZES}", "name the sizes apart"
        )
    if importlib.util.find_spec("vllm") is None:
        raise SettingsError(
            f"vLLM is not installed for {sys.executable}",
            "install warmup where the engine is installed, and build there",
        )
    import torch

    if 0 < (found := torch.cuda.device_count()) < ranks:  # on a CPU ranks are processes
        raise SettingsError(
            f"a tensor parallel size of {ranks} needs {ranks} GPUs, and this machine has {found}",
            "build on a machine like that which will serve",
        )
    arguments = {
        "skip_tokenizer_init": True,
        **given,
        "model": str(folder.absolute()),
        "load_format": "dummy",
        "tensor_parallel_size": ranks,
        _COMPILATION: {**compilation, _STATIC_SIZES: sorted(sizes)},
    }
    return [sys.executable, "-m", __name__, json.dumps(arguments)]


def is_on_gpu() -> bool:
    """Return whether an engine that is started here would run on a GPU."""
    import torch

    return torch.cuda.is_available()


# `batch_invariant_tiles`: what `warmup export --to vllm-batch-invariant` writes.

Weight = tuple[int, int]  # N, K
Tile = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, warps, stages
_Candidates = dict[int, tuple[float, Tile]]  # the best by BLOCK_K, with its time
_DICT: Final = "_BATCH_INVARIANT_MATMUL_TUNED_CONFIGS"
_FAMILIES: Final = {  # of vLLM, with the shared memory of a block, and stages without a buffer
    "sm_89": ("ada", 101_376, 1),
    "sm_9": ("hopper", 232_448, 0),
    "sm_10": ("blackwell", 232_448, 0),
    "sm_12": ("sm120", 101_376, 1),
}
_TILED: Final = re.compile(
    r"triton::\w+ ([0-9]{2,4})x([0-9]{2,4})x([0-9]{2,4}) w([1-9][0-9]?) s([1-9][0-9]?)"
    r"(?: not)?(?: fused)?"
)
_LEAST_BLOCK: Final = 16  # of a product on tensor cores
_LARGE: Final = (128, 128, 8, 3)  # what vLLM gives every M of a weight that it does not know
_LARGE_M: Final = 128
# Bytes for vLLM's single program on an SM to load at once: half took an H200 1.7 times as long.
_LEAST_LOADING: Final = 2**15
_LAST_M: Final = (64, 2048)  # of small sizes and of all, in vLLM's own buckets
_NONE: Final = (
    "no BLOCK_K that a Triton candidate has at each M of the weight: build it with --set "
    "backends=TRITON"
)


@dataclass(frozen=True, slots=True)
class BatchInvariantTiles:
    """Tiles of vLLM's batch-invariant matmul for a family of GPUs, None for one that it lacks.

    ``weights`` has by (N, K) the BLOCK_K and, by the M of a bucket, the tile. ``left_out`` has by
    reason the keys of the rows whose kernels are not there.
    """

    family: str | None
    weights: Mapping[Weight, tuple[int, Mapping[int, Tile]]]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The Python source that adds the tiles to vLLM's, where it is appended to its module."""
        lines = [
            "# Append to vllm/model_executor/determinism/batch_invariant_configs.py, vLLM 0.33"
        ]
        if self.weights:
            lines += [f'{_DICT}.setdefault("{self.family}", {{}}).update(', "    {"]
        for weight, (block_k, buckets) in sorted(self.weights.items()):
            lines += [
                f"        {weight}: _MatmulShapeConfig(",
                f"            block_k={block_k},",
                "            m_buckets=(",
                *(f"                ({m}, _MatmulMConfig{buckets[m]})," for m in sorted(buckets)),
                "            ),",
                "        ),",
            ]
        return "\n".join([*lines, *(["    }", ")"] if self.weights else []), ""])


def batch_invariant_tiles(table: Table) -> BatchInvariantTiles:
    """Return the tiles of the GEMM rows of *table* for vLLM's batch-invariant matmul.

    A weight gets the BLOCK_K with the least geometric mean time over its Ms, of those that the
    evidence of each M names a candidate with; an M gets the fastest such candidate's tile. A weight
    without such a BLOCK_K is left out, since its tiles would take the place of vLLM's own. Where
    all Ms are below 128, larger ones get the tile of weights that vLLM does not know.
    """
    arch = table.provenance.runtime.device.arch
    known = (each for start, each in _FAMILIES.items() if arch.startswith(start))
    family, shared, unbuffered = next(known, (None, 0, 0))
    left_out: dict[str, list[str]] = {}
    measured: dict[Weight, dict[int, _Candidates]] = {}
    keys: dict[Weight, list[str]] = {}
    for key, row in sorted(table.rows.items()):
        reason = _refusal(key, row) if family else f"vLLM has no tiles for {printable(arch)}"
        if reason is not None:
            left_out.setdefault(reason, []).append(key)
            continue
        sizes = kind_of(key).ingredients(key)
        weight = int(sizes["n"]), int(sizes["k"])
        keys.setdefault(weight, []).append(key)
        m = int(sizes["m"].rpartition("..")[2])
        best = measured.setdefault(weight, {}).setdefault(m, {})
        for own, timed in _candidates(row, shared, unbuffered).items():
            best[own] = min(timed, best.get(own, timed))
    weights = {}
    for weight, by_m in measured.items():
        block_k = _block_k(by_m.values())
        if block_k is None:
            left_out.setdefault(_NONE, []).extend(keys[weight])
        else:
            weights[weight] = block_k, _buckets({m: best[block_k][1] for m, best in by_m.items()})
    return BatchInvariantTiles(family, weights, left_out)


def _refusal(key: str, row: Row) -> str | None:
    kind = kind_of(key)
    if kind.name != "gemm":
        return f"rows of the kind {kind.name}: vLLM's tiles are for GEMMs alone"
    said = kind.ingredients(key)
    op, dtypes = said["op"], {said["dtype"], said.get("dtype_b", said["dtype"]), said["out"]}
    sizes = (said["m"].rpartition("..")[2], said["n"], said["k"])
    reasons = {
        f"{op}: vLLM's tiles are for mm and addmm alone": op not in {"mm", "addmm"},
        f"{', '.join(sorted(dtypes))}: vLLM's tiles are for bf16 alone": dtypes != {"bf16"},
        "a range of n or k, or of m without an end": not all(map(str.isdecimal, sizes)),
        "the row is not trusted": row.untrusted is not None,
        "its times are unstable": row.evidence.is_unstable,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _candidates(row: Row, shared: int, unbuffered: int) -> _Candidates:
    """Return what *shared* bytes hold, as they do `_LARGE` with its BLOCK_K, timed as in vLLM."""
    found: _Candidates = {}
    named = ((row.evidence.time_us, row.winner.short), *ranked(row.evidence.ranking))
    for alone_us, name in named:
        if (match := _TILED.fullmatch(name)) is None:
            continue
        block_m, block_n, block_k, warps, stages = map(int, match.groups())
        tile = (block_m, block_n, warps, stages)
        held = max(_most_held(each, block_k, unbuffered) for each in (tile, _LARGE))
        powers = (size & (size - 1) == 0 for size in (*tile[:3], block_k))
        if min(block_m, block_n, block_k) >= _LEAST_BLOCK and all(powers) and held <= shared:
            loading = 2 * block_n * block_k * max(1, stages - 1)
            timed = (alone_us * max(1.0, _LEAST_LOADING / loading), tile)
            found[block_k] = min(timed, found.get(block_k, timed))
    return found


def _most_held(tile: Tile, block_k: int, unbuffered: int) -> int:
    """Return the bytes of shared memory that vLLM's kernel needs at most, by Triton 3.8."""
    block_m, block_n, _, stages = tile
    buffers = max(1, stages - unbuffered)
    return 2 * block_k * (block_m + block_n) * buffers + min(2 * block_m * block_n, 2**15) + 16


def _block_k(measured: Collection[_Candidates]) -> int | None:
    common = sorted(set.intersection(*map(set, measured)))
    return min(common, key=lambda each: math.prod(one[each][0] for one in measured), default=None)


def _buckets(tiles: Mapping[int, Tile]) -> dict[int, Tile]:
    largest, (few, many) = max(tiles), _LAST_M
    if largest >= _LARGE_M:  # the last bucket serves every larger M too
        return dict(tiles)
    return {**tiles, max(few, largest): tiles[largest], many: _LARGE}


def _main() -> None:
    import vllm  # where the engine is installed: the command has looked for it

    vllm.LLM(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    _main()
