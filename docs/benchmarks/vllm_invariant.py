"""Times the tiles of vLLM's batch-invariant matmul in its own kernel, on a GPU without vLLM.

    python docs/benchmarks/vllm_invariant.py --vllm FOLDER --tiles TILES.py --out RESULTS.json

FOLDER is vllm/model_executor/determinism of a wheel of vLLM 0.33.0; what its two modules import of
vLLM is replaced by a few names. TILES.py is what `warmup export --to vllm-batch-invariant` wrote,
and is read without being run. For each weight and M four calls take turns in CUDA graphs from a
cold L2: vLLM's matmul with its own tiles, with those of TILES.py, with the tile of weights that it
does not know, and `torch.mm`. Equal tiles are timed once. "same" says whether a row has the same
bits at every M.

    python docs/benchmarks/vllm_invariant.py --vllm FOLDER --sweep TILES.py

measures a grid of tiles instead and writes the best in the form of the export: for each weight the
BLOCK_K with the least geometric mean over M. Without a GPU `--list` prints the tiles that vLLM
would launch, and `--problems FILE` writes what `warmup build --problems FILE` tunes for the export.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import importlib
import json
import math
import multiprocessing
import statistics
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from driver import numbers, say, write

from warmup.core.rows import L2, Launch
from warmup.core.trial import Samples
from warmup.measuring.clock import batch_of, run_rounds
from warmup.serving.engines import BatchInvariantTiles, Tile, Weight

DEVICE = torch.device("cuda", 0)
PACKAGE = "vllm.model_executor.determinism"
H100 = ((9, 0), 132, 232_448)  # capability, SMs, bytes of shared memory: for --list without a GPU
# hidden size, heads, heads of keys, size of a head, intermediate size, vocabulary
MODELS = {
    "qwen2.5-7b": (3584, 28, 4, 128, 18944, 152064),
    "llama-3-8b": (4096, 32, 8, 128, 14336, 128256),
}
SPLIT = {"qwen2.5-7b-tp2": 2, "llama-3-8b-tp1": 1, "llama-3-8b-tp4": 4}
OWN = "vllm"  # the name of the weights that vLLM has tiles for
SIZES = "1,4,8,16,32,64,256,512,1024,2048"
FEW = 64  # rows of a decode step
OPERANDS = 12 * 2**30  # bytes, of the sets of a weight
GRID = {
    "block_k": (64, 128),
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128, 256),
    "warps": (4, 8),
    "stages": (2, 3, 4, 5),
}
REST = ("block_n", "warps", "stages")
MOST_OUTPUTS = 128  # of a thread
FINALS = 4  # of a sweep, measured again in turn
SCREENED = 3  # rounds of each config before
TILED = {"_MatmulMConfig", "_MatmulShapeConfig"}


class Config(NamedTuple):
    """What vLLM's kernel is launched with, apart from the groups of rows, which are always 8."""

    block_k: int
    tile: Tile

    def __str__(self) -> str:
        block_m, block_n, warps, stages = self.tile
        return f"{block_m}x{block_n}x{self.block_k} w{warps} s{stages}"


class Capability(NamedTuple):
    """Of a GPU, in the names of vLLM."""

    major: int
    minor: int


class Matmul:
    """vLLM's batch-invariant matmul, of the modules in *folder*, for a GPU as described."""

    def __init__(self, folder: Path, capability: tuple[int, int], sms: int, shared: int) -> None:
        add_names(folder, Capability(*capability), sms, shared)
        self.configs = importlib.import_module(f"{PACKAGE}.batch_invariant_configs")
        self.module = importlib.import_module(f"{PACKAGE}.batch_invariant")
        self.family = str(self.configs._get_tuned_matmul_arch_family(Capability(*capability)))
        self.own: Any = self.configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS.get(self.family, {})
        self.shared, self.triton = shared, self.module.triton.__version__

    def __call__(self, a: torch.Tensor, weight: torch.Tensor) -> Any:
        return self.module.matmul_persistent(a, weight.t())

    def use(self, table: Mapping[Weight, Any]) -> None:
        """Let the lookups from now on find *table* alone."""
        self.configs._TUNED_MATMUL_CONFIGS_FOR_DEVICE = table
        self.configs._TUNED_MATMUL_CONFIGS_RESOLVED = True

    def table_of(self, weights: Mapping[Weight, tuple[int, Any]]) -> dict[Weight, Any]:
        """Return tiles by weight in the types of vLLM."""
        shape, tile = self.configs._MatmulShapeConfig, self.configs._MatmulMConfig
        return {
            weight: shape(block_k, tuple((m, tile(*each)) for m, each in sorted(buckets.items())))
            for weight, (block_k, buckets) in weights.items()
        }

    def run(self, config: Config, a: torch.Tensor, weight: torch.Tensor) -> Any:
        (m, k), n = a.shape, weight.shape[0]
        self.use(self.table_of({(n, k): (config.block_k, {m: config.tile})}))
        return self(a, weight)

    def config_of(self, table: Mapping[Weight, Any], m: int, weight: Weight) -> Config:
        """Return what vLLM's code launches its kernel with, on operands without memory."""
        launched: dict[str, Any] = {}

        class Recorder:
            def __getitem__(self, _grid: object) -> Callable[..., None]:
                return lambda *_, **named: launched.update(named)

        (n, k), kernel = weight, self.module.matmul_kernel_persistent
        self.use(table)
        self.module.matmul_kernel_persistent = Recorder()
        try:
            sizes = ((m, k), (n, k))
            self(*(torch.empty(each, dtype=torch.bfloat16, device="meta") for each in sizes))
        finally:
            self.module.matmul_kernel_persistent = kernel
        tile = (launched[f"BLOCK_SIZE_{each}"] for each in "MN")
        return Config(
            launched["BLOCK_SIZE_K"], (*tile, launched["num_warps"], launched["num_stages"])
        )


def add_names(folder: Path, capability: Capability, sms: int, shared: int) -> None:
    """Add the names of vLLM that its two modules import; the package of both is *folder*."""
    import triton
    from triton import language

    platform = types.SimpleNamespace(
        dispatch_key="CUDA",
        get_device_capability=lambda: capability,
        is_cuda=lambda: True,
        is_cuda_alike=lambda: True,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_device_capability_family=lambda family: capability.major == family // 10,
    )
    names: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": True},
        "vllm.model_executor": {},
        "vllm.model_executor.determinism": {"__path__": [str(folder)]},
        "vllm.platforms": {"current_platform": platform},
        "vllm.platforms.interface": {"DeviceCapability": Capability},
        "vllm.triton_utils": {"tl": language, "triton": triton},
        "vllm.utils": {},
        "vllm.utils.mem_utils": {"get_max_shared_memory_bytes": lambda _gpu=0: shared},
        "vllm.utils.nccl": {"pin_nccl_env": lambda _names: None},
        "vllm.utils.platform_utils": {"num_compute_units": lambda _index=0: sms},
        "vllm.utils.torch_utils": {"is_torch_equal_or_newer": lambda _version: True},
    }
    for name, content in names.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update({"__path__": [], **content})
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def this_gpu() -> tuple[tuple[int, int], int, int]:
    found = torch.cuda.get_device_properties(DEVICE)
    return (
        (found.major, found.minor),
        found.multi_processor_count,
        found.shared_memory_per_block_optin,
    )


class _Plain(ast.NodeTransformer):
    """Turns the calls of vLLM's types into tuples of their arguments."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id in TILED):
            return node
        return ast.Tuple([*node.args, *(each.value for each in node.keywords)], ast.Load())


def read_tiles(path: Path) -> dict[Weight, tuple[int, dict[int, Tile]]]:
    """Return the tiles by weight of an exported file, which is parsed and not run."""
    tree: Any = _Plain().visit(ast.parse(path.read_text(encoding="utf-8")))
    weights: dict[Weight, tuple[int, dict[int, Tile]]] = {}
    for statement in tree.body:
        (added,) = statement.value.args
        for weight, (block_k, buckets) in ast.literal_eval(added).items():
            weights[weight] = block_k, dict(buckets)
    return weights


def weights_of(model: str, ranks: int) -> list[Weight]:
    """Return (N, K) of a rank's linears: qkv, o, gate and up, down, and the head."""
    hidden, heads, kv_heads, head, inner, words = MODELS[model]
    own = heads * head // ranks
    return [
        (own + 2 * kv_heads * head // ranks, hidden),
        (hidden, own),
        (2 * inner // ranks, hidden),
        (hidden, inner // ranks),
        (words // ranks, hidden),
    ]


def sets_of_weights(matmul: Matmul) -> dict[str, list[Weight]]:
    split = {name: weights_of(name.rpartition("-")[0], ranks) for name, ranks in SPLIT.items()}
    return {OWN: list(matmul.own), **split}


class Operands:
    """Sets of a weight, of which a batch from a cold L2 uses each once, and activations."""

    def __init__(self, weight: Weight, most: int) -> None:
        n, k = weight
        self.count = max(1, min(64, OPERANDS // (2 * k * (n + most))))
        source = torch.Generator(DEVICE).manual_seed(n + k)

        def drawn(rows: int) -> torch.Tensor:
            empty = torch.empty((rows, k), dtype=torch.bfloat16, device=DEVICE)
            return empty.normal_(generator=source)

        self.a = [drawn(most) for _ in range(self.count)]
        self.w = [drawn(n) * k**-0.5 for _ in range(self.count)]

    def time(
        self, calls: Mapping[Any, Callable[..., Any]], m: int, rounds: int
    ) -> dict[Any, Samples]:
        """Return *rounds* times of each of *calls*, which take activations and a weight."""

        def numbered(call: Callable[..., Any], number: int) -> Any:
            which = number % self.count
            return call(self.a[which][:m], self.w[which])

        batches = {
            name: batch_of(partial(numbered, call), DEVICE, L2.COLD, self.count, Launch.CUDAGRAPH)
            for name, call in calls.items()
        }
        return run_rounds(batches, rounds)


@cache
def on_this_gpu(folder: Path) -> Matmul:
    return Matmul(folder, *this_gpu())


def compiled_in(folder: Path, config: Config, size: int) -> str | None:
    """Launch vLLM's kernel once on small operands, in another process; return why that failed.

    This process then finds the kernel on disk: Triton's key has of the sizes whether they are 1,
    or divisible by 16, and nothing else.
    """
    try:
        sizes = ((size, 512), (512, 512))
        operands = (torch.ones(each, dtype=torch.bfloat16, device=DEVICE) for each in sizes)
        on_this_gpu(folder).run(config, *operands)
        torch.cuda.synchronize(DEVICE)
    except Exception as error:  # noqa: BLE001  whatever Triton or the driver raises
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return None


def compiled(folder: Path, wanted: Iterable[tuple[Config, int]], jobs: int) -> set[Config]:
    """Compile vLLM's kernel for each of *wanted*, a config and an M; return what cannot run."""
    forms = sorted({(config, form_of(m)) for config, m in wanted})
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        names = (folder for _ in forms)
        failures = list(pool.map(compiled_in, names, *zip(*forms, strict=True), chunksize=4))
    failed = {config: why for (config, _), why in zip(forms, failures, strict=True) if why}
    for config, why in failed.items():
        emit(cannot_run=str(config), why=why)
    return set(failed)


def form_of(m: int) -> int:
    """Return the least size for which Triton compiles what it compiles for *m*."""
    return 1 if m == 1 else 16 if m % 16 == 0 else 2


def emit(**said: Any) -> dict[str, Any]:
    say(json.dumps(said))
    return said


def race(matmul: Matmul, arguments: argparse.Namespace, wanted: Mapping[Weight, str]) -> list[Any]:
    """Time the variants for each weight and M, and print a line of JSON for each."""
    tiles = matmul.table_of(read_tiles(arguments.tiles)) if arguments.tiles else {}
    tables = {"vllm": matmul.own, "tiles": tiles, "128x128x64": {}}
    chosen: dict[tuple[Weight, int], dict[str, Config]] = {
        (weight, m): {
            name: matmul.config_of(table, m, weight)
            for name, table in tables.items()
            if name != "tiles" or weight in table
        }
        for weight in wanted
        for m in arguments.sizes
    }
    pairs = ((one, m) for (_, m), configs in chosen.items() for one in configs.values())
    bad = compiled(arguments.vllm, pairs, arguments.jobs)
    results = []
    for weight, names in wanted.items():
        operands = Operands(weight, max(arguments.sizes))
        bits: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for m in arguments.sizes:
            configs = chosen[weight, m]
            named: dict[str, Any] = {**configs, "torch": "torch"}
            calls: dict[Any, Any] = {
                one: partial(matmul.run, one) for one in configs.values() if one not in bad
            }
            calls["torch"] = by_torch
            a, w = operands.a[0][:m], operands.w[0]
            exact = a[:1].float() @ w.t().float()
            errors = {}
            for name, config in named.items():
                if config in calls:
                    row = calls[config](a, w)[:1]
                    bits[name].add(tuple(row.flatten().view(torch.int16).tolist()))
                    error = (row.float() - exact).square().mean() / exact.square().mean()
                    errors[name] = round(float(error.sqrt()), 5)
            times = operands.time(calls, m, arguments.rounds)
            timed = {name: times[config] for name, config in named.items() if config in times}
            results.append(
                emit(
                    n=weight[0],
                    k=weight[1],
                    m=m,
                    of=names,
                    us={name: round(one.median, 3) for name, one in timed.items()},
                    spread={name: round(one.spread, 4) for name, one in timed.items()},
                    config={name: str(config) for name, config in configs.items()},
                    error=errors,
                )
            )
        same = {name: len(each) == 1 for name, each in bits.items()}
        results.append(emit(n=weight[0], k=weight[1], same=same))
        if arguments.out:
            gpu, versions = torch.cuda.get_device_name(DEVICE), (torch.__version__, matmul.triton)
            write(arguments.out, {"gpu": gpu, "versions": versions, "results": results})
        del operands
    return [one for one in results if "us" in one]


def by_torch(a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, weight.t())


def table_lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield by weight, by set of weights and over all how many times faster than vLLM's tiles."""
    others = ("tiles", "128x128x64", "torch")
    head = (*(f"{name}, M<={FEW}" for name in others), *(f"{name}, all M" for name in others))
    yield f"{'vLLM over':32}" + "".join(f"{each:>20}" for each in head)
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in results:
        groups[f"{one['n']}x{one['k']} {one['of']}"[:31]].append(one)
    for name in (OWN, *SPLIT):
        groups[f"= {name}"] = [one for one in results if name in one["of"].split()]
    groups["= all"] = list(results)
    for label, group in groups.items():
        cells = ""
        for most in (FEW, math.inf):
            for name in others:
                logs = [
                    math.log(one["us"]["vllm"] / one["us"][name])
                    for one in group
                    if one["m"] <= most and {"vllm", name} <= one["us"].keys()
                ]
                cells += f"{math.exp(statistics.fmean(logs)):20.3f}" if logs else f"{'-':>20}"
        yield f"{label:32}{cells}"


def grid_of(matmul: Matmul, m: int) -> Iterator[Config]:
    """Yield the configs of a sweep for *m*: whose rows fit it, and which fit shared memory."""
    top = min(128, max(16, 1 << (m - 1).bit_length()))
    rows = [each for each in GRID["block_m"] if top // (4 if m <= FEW else 2) <= each <= top]
    for block_k, block_m, *rest in product(GRID["block_k"], rows, *(GRID[each] for each in REST)):
        block_n, warps, stages = rest
        held = 2 * (stages - 1) * block_k * (block_m + block_n)
        if held <= matmul.shared and block_m * block_n <= MOST_OUTPUTS * 32 * warps:
            yield Config(block_k, (block_m, block_n, warps, stages))


def sweep(matmul: Matmul, arguments: argparse.Namespace, wanted: Mapping[Weight, str]) -> None:
    """Measure the grid for each weight and M, and write the best tiles after each weight.

    Weights that the file has are kept: a sweep that was ended goes on.
    """
    grids = {m: list(grid_of(matmul, m)) for m in arguments.sizes}
    pairs = ((config, m) for m, grid in grids.items() for config in grid)
    bad = compiled(arguments.vllm, pairs, arguments.jobs)
    found = read_tiles(arguments.sweep) if arguments.sweep.exists() else {}
    for weight in wanted:
        if weight in found:
            continue
        operands = Operands(weight, max(arguments.sizes))
        best: dict[int, dict[int, tuple[float, Tile]]] = defaultdict(dict)
        for m in arguments.sizes:
            screened: dict[int, list[tuple[float, Config]]] = defaultdict(list)
            for config in grids[m]:
                if config not in bad:
                    call = {config: partial(matmul.run, config)}
                    time_us = operands.time(call, m, SCREENED)[config].median
                    screened[config.block_k].append((time_us, config))
            finals = [config for each in screened.values() for _, config in sorted(each)[:FINALS]]
            calls = {config: partial(matmul.run, config) for config in finals}
            for config, samples in operands.time(calls, m, arguments.rounds).items():
                timed = (samples.median, config.tile)
                best[config.block_k][m] = min(timed, best[config.block_k].get(m, timed))
        whole = {k: by_m for k, by_m in best.items() if len(by_m) == len(arguments.sizes)}
        if not whole:
            emit(n=weight[0], k=weight[1], cannot_run="no BLOCK_K at every M")
            continue
        block_k = min(whole, key=lambda k: sum(math.log(us) for us, _ in whole[k].values()))
        found[weight] = block_k, {m: tile for m, (_, tile) in whole[block_k].items()}
        times = {k: {m: round(us, 3) for m, (us, _) in by_m.items()} for k, by_m in best.items()}
        emit(n=weight[0], k=weight[1], block_k=block_k, us=times)
        source = BatchInvariantTiles(matmul.family, found).source
        arguments.sweep.write_text(source, encoding="utf-8")
        del operands


def list_configs(
    matmul: Matmul, arguments: argparse.Namespace, wanted: Mapping[Weight, str]
) -> None:
    tiles = matmul.table_of(read_tiles(arguments.tiles)) if arguments.tiles else {}
    for weight in wanted:
        for m in arguments.sizes:
            own = matmul.config_of(matmul.own, m, weight)
            new = matmul.config_of({**matmul.own, **tiles}, m, weight)
            emit(n=weight[0], k=weight[1], m=m, vllm=str(own), tiles=str(new))


def problems_of(wanted: Iterable[Weight], sizes: Iterable[int]) -> dict[str, Any]:
    """Return the document of problems from which `warmup build` tunes each weight and M."""
    layout = "bf16 a=row b=col out=bf16 | epilogue=none"
    keys = [f"mm m={m} n={n} k={k} {layout}" for (n, k), m in product(wanted, sizes)]
    common = {"count": 1, "kind": "gemm", "reason": "not_in_table"}
    problems = [{**common, "key": key} for key in sorted(keys)]
    return {"schema": 1, "digests": [], "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--tiles", type=Path)
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--shapes", default=",".join((OWN, *SPLIT)))
    parser.add_argument("--sizes", type=numbers, default=numbers(SIZES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    matmul = Matmul(arguments.vllm, *(this_gpu() if torch.cuda.is_available() else H100))
    sets = sets_of_weights(matmul)
    wanted: dict[Weight, str] = {}
    for name in arguments.shapes.split(","):
        for weight in sets[name]:
            wanted[weight] = f"{wanted[weight]} {name}" if weight in wanted else name
    if arguments.list:
        list_configs(matmul, arguments, wanted)
    elif arguments.problems:
        write(arguments.problems, problems_of(wanted, arguments.sizes))
    elif not torch.cuda.is_available():
        parser.error("no GPU: only --list and --problems need none")
    elif arguments.sweep:
        sweep(matmul, arguments, wanted)
    else:
        for line in table_lines(race(matmul, arguments, wanted)):
            say(line)


if __name__ == "__main__":
    main()
