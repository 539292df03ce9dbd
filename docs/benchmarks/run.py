"""Measure again what the benchmark page quotes: one name for each set of results.

    python docs/benchmarks/run.py --list
    python docs/benchmarks/run.py starts-llama zoo --out results
    python docs/benchmarks/run.py starts-OPT starts-Phi-3 effort-OPT --gpus 2 --limit 580

Each set is one command or several, printed before they run, with the repository as the current
folder. A set that fails does not end the others; the exit code is then 1. With --gpus the sets run
side by side, in order: each GPU has a share of the cores, and begins the next set that none has
begun. With --limit all end after so many seconds; the same call then goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from driver import DAY_S, ROOT, python_path, say
from zoo_models.entries import SERVED

from warmup.cli.streams import EXIT_UNDECIDED

FIVE = "--seqlens 16,256,560,1024,2048"
H200 = "tables/nvidia-h200"
LLAMA, SWIGLU = "examples/llama_block.py:LlamaBlocks", "examples/vision_block.py:SwiGLU"
HERE = "docs/benchmarks"
_LEAST_S = 30.0  # to begin a command with


def starts_of(name: str, model: str, words: str) -> tuple[str]:
    """Return the command for all starts of *model*; {out} is the folder of the results."""
    limited = f"{words} --limit {{left}}"
    return (f"python {HERE}/starts.py --out {{out}} --name {name} --model '{model}' {limited}",)


def rows_of(name: str, model: str, words: str, **builds: str) -> tuple[str, ...]:
    """Return commands for a table with the options of each of *builds*, and for their times."""
    case = f"--model {HERE}/zoo_models/{model} {shlex.join(words.split())}"
    paths = {build: f"{{out}}/{name}-{build}.json" for build in builds}
    tables = ",".join([*paths.values()] * 2)
    return (
        *(
            f"python -m warmup build {case} --out {paths[build]} {options}"
            f"{'' if 'bundle' in options else ' --no-bundle'}"
            for build, options in builds.items()
        ),
        f"python {HERE}/rows.py {case} --record --starts {tables} --results {{out}}/{name}.json",
    )


_REPLAYED = "--set bundle_graphs=reduce-overhead"
_DIMS = "--dims seqlen=16,256,560,1024,2048"
_ALL = f"{_DIMS} --once max-autotune,max-autotune-warm,mega-cache --starts "
_WARM = "max-autotune-warm,mega-cache,default-warm,table-warm,bundle-graphs"
_LAYERS = "default-layers,table-layers,bundle-graphs-layers"
_DEEP = f"{_DIMS} --layers layers --repeats 1 --starts default,{_LAYERS}"
_DEEP_MODEL = f'{LLAMA}{{"layers":32}}'
_TEXT = "--dims batch=1,8;seqlen=384 --input input_ids=[batch,seqlen]:i64"
_PROMPT = "--dims seqlen=16,512 --input ids=[1,seqlen]:i64"
# In zoo_models; each takes 6 to 10 minutes of a GPU.
_STARTED = {
    "OPT": ("started.py:opt", _TEXT),
    "EVA-02": ("started.py:eva02", "--dims batch=1 --input x=[batch,3,448,448]:bf16"),
    "Phi-3": ("started.py:phi3", _TEXT),
    "Qwen2.5": ("decoders.py:qwen2", _PROMPT),
    "DINOv2": ("started.py:dinov2", "--dims batch=1,8 --input x=[batch,3,518,518]:bf16"),
    "UNet": (  # needs diffusers
        "unet.py:unet",
        "--dims batch=2 --input sample=[batch,4,128,128]:bf16 --input states=[batch,77,2048]:bf16",
    ),
    "wav2vec2": ("started.py:wav2vec2", "--dims batch=1 --input input_values=[batch,160000]:bf16"),
}
_INVARIANT = {
    "BERT": (
        "encoders.py:bert_large",
        "--dims batch=1,8,64;seqlen=128 --input input_ids=[batch,seqlen]:i64",
    ),
    "DINOv2": _STARTED["DINOv2"],
    "Llama-3": (
        "decoders.py:llama3",
        "--dims batch=1,2,4;seqlen=512 --input ids=[batch,seqlen]:i64",
    ),
}
_BUILT = "--policy range --invariant --seqlens 64,2048"
_SERVED = "--seqlens 2,64,2048 --buckets 64,2048 --random 50 --starts range:{out}/range.json"
_RANGED = f"--model {HERE}/zoo_models/decoders.py:qwen2 --input ids=[seqlen,1]:i64"

_PRODUCTS = f"{H200}/products.bf16.json"
_TILED = f"python {HERE}/vllm_invariant.py --vllm .vllm --sizes 1,16,64,512,2048"
_HASHED = {
    name: (
        f"python {HERE}/bits.py --table {H200}/zoo.{name}.bf16.json --devices cuda:0 "
        f"{shlex.join(SERVED[name].words)} --limit {{left}}"
    )
    for name in ("vit", "llama3-8b", "qwen2-7b-tokens", "modernbert")
}

# {out} is the folder of the results, {left} the seconds that are left.
SETS: dict[str, tuple[str, ...]] = {
    "starts-llama": starts_of("llama-h200", LLAMA, _ALL + _WARM),
    "starts-swiglu": starts_of("swiglu-h200", SWIGLU, _ALL + _WARM),
    "starts-deep": (
        *starts_of("deep-h200", _DEEP_MODEL, _DEEP),
        *starts_of("deep-graphs-h200", _DEEP_MODEL, f"{_DEEP} --record"),
    ),
    **{
        f"starts-{name}": starts_of(
            f"starts-{name}",
            f"{HERE}/zoo_models/{model}",
            " ".join(shlex.quote(word) for word in f"{words} --repeats 1".split()),
        )
        for name, (model, words) in _STARTED.items()
    },
    **{
        f"effort-{name}": rows_of(
            f"effort-{name}", model, words, full="--effort full", share="--effort share"
        )
        for name, (model, words) in _STARTED.items()
    },
    "invariant": rows_of(
        "invariant",
        "decoders.py:qwen2",
        "--dims batch=1,8,64,2048;seqlen=1 --input ids=[batch,seqlen]:i64",
        invariant="--invariant",
        plain="",
    ),
    **{
        f"invariant-{name}": rows_of(
            f"invariant-{name}", model, words, invariant="--invariant", plain=""
        )
        for name, (model, words) in _INVARIANT.items()
    },
    # The dim seqlen is the batch, of one token each: a table of ranges has one dim.
    "invariant-range": (
        f"python -m warmup build {_RANGED} {_BUILT} --no-bundle --out {{out}}/range.json",
        f"python {HERE}/rows.py {_RANGED} {_SERVED} --results {{out}}/invariant-range.json",
    ),
    "starts-cpu": starts_of(
        "mlp-cpu",
        "examples/mlp.py:MLP",
        "--dims seqlen=16,64,256 --device cpu --starts "
        "default,default-freezing,max-autotune-gemm,table --once max-autotune-gemm",
    ),
    "compare-swiglu": (
        (
            f"python -m warmup compare --model {SWIGLU} --seqlens 16,64,560,2048 "
            f"--table {H200}/vision-block.swiglu.bf16.json --launch cudagraph --out {{out}}/swiglu"
        ),
    ),
    "compare-products": tuple(
        f"python -m warmup compare --model examples/products.py:{name} "
        "--dims n=4096;k=4096;m=16,64,256,560,1024,2048 "
        f"--table {H200}/products.bf16.json --launch cudagraph --out {{out}}/products-{name}"
        for name in ("Plain", "BiasGelu", "SiluMul", "Residual")
    ),
    "mix": (
        f"python -m warmup build --model {LLAMA} {FIVE} --policy range --out {{out}}/ranges.json",
        (
            f"python {HERE}/mix.py --model {LLAMA} --buckets 16,256,560,1024,2048 "
            "--table {out}/ranges.json --results {out}/mix.json"
        ),
    ),
    "user-kernels": ("python tests/programs/serve_user_kernels.py {out}/user-kernels",),
    **{
        f"algorithms-{name}": rows_of(
            f"algorithms-{name}",
            f"decoders.py:{model}",
            "--dims batch=1,8,64;seqlen=1 --input ids=[batch,seqlen]:i64",
            plain=_REPLAYED,
            blas=f"{_REPLAYED} --set backends=ATEN,TRITON,CUBLASLT",
        )
        for name, model in (("Qwen2.5", "qwen2"), ("Llama-3", "llama3"))
    },
    "algorithms": (f"python {HERE}/blas_rows.py --out {{out}}/blas-rows.json",),
    "verified": (f"python -m warmup check {_PRODUCTS} --verify 50",),
    # After vllm-tiles, whose table has Triton kernels alone.
    "planted": (f"python {HERE}/planted.py {{out}}/vllm.json --out {{out}}/planted.json",),
    # In .vllm the folder vllm/model_executor/determinism of a wheel of vLLM 0.33.0.
    "vllm-tiles": (
        f"{_TILED} --problems {{out}}/vllm-problems.json",
        (
            "python -m warmup build --problems {out}/vllm-problems.json --set backends=TRITON "
            "--no-bundle --out {out}/vllm.json"
        ),
        (
            "python -m warmup export {out}/vllm.json --to vllm-batch-invariant "
            "--out {out}/vllm-tiles.py"
        ),
        f"{_TILED} --tiles {{out}}/vllm-tiles.py --out {{out}}/vllm-race.json",
    ),
    "exported": (
        f"python -m warmup export {_PRODUCTS} --out {{out}}/lookup_table.json",
        "python -I tests/programs/serve_exported.py {out}",
    ),
    "hashes": tuple(
        f"{words} --side-by-side 8 --starts table=20 --results {{out}}/hashes-{name}.json"
        for name, words in _HASHED.items()
    ),
    # Starts alone, whose times count.
    "modes": (
        (
            f"{_HASHED['qwen2-7b-tokens']} --record "
            "--starts table=2,deterministic=2,max-autotune=2 --results {out}/modes.json"
        ),
    ),
    "zoo": (f"python {HERE}/zoo.py --out {{out}}/zoo",),
    "bench-mm": ("python -m warmup bench mm --out {out}/bench-mm",),
    "bench-layers": ("python -m warmup bench layers --out {out}/bench-layers",),
}


def run_set(name: str, out: Path, ends: float, gpu: int | None = None, gpus: int = 1) -> bool:
    """Run the commands of the set *name* until one fails; return whether none did."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    cores = sorted(os.sched_getaffinity(0))
    if gpu is not None:
        share = len(cores) // gpus
        cores = cores[gpu * share : (gpu + 1) * share]
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    for command in SETS[name]:
        left = ends - time.monotonic()
        if left < _LEAST_S:
            say(f"{name}: no time left")
            return False
        words = shlex.split(command.replace("{out}", str(out)).replace("{left}", f"{left:.0f}"))
        words[0] = sys.executable
        say(f"{name}:", shlex.join(words))
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            preexec_fn=partial(os.sched_setaffinity, 0, cores),  # noqa: PLW1509  no thread holds a lock here
        )
        try:
            code = process.wait(left)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # a build keeps the rows that it has
            code = process.wait()
        if code not in (0, EXIT_UNDECIDED):  # a table whose every row is unstable is a table
            say(f"{name}: failed with code {code}")
            return False
    return True


def run_all(names: Iterator[str], out: Path, ends: float, gpus: int) -> list[bool]:
    """Run the sets *names*, beside each other on as many *gpus*."""
    if not gpus:
        return [run_set(name, out, ends) for name in names]

    def run_next(gpu: int) -> list[bool]:
        return [run_set(name, out, ends, gpu, gpus) for name in names]

    with ThreadPoolExecutor(gpus) as pool:
        return [done for each in pool.map(run_next, range(gpus)) for done in each]


def main() -> None:
    """Run the sets that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--gpus", type=int, default=0, help="so many sets side by side")
    parser.add_argument("--limit", type=float, default=DAY_S, help="seconds")
    parser.add_argument("--list", action="store_true", help="print the commands of every set")
    asked = parser.parse_args()
    if unknown := [name for name in asked.sets if name not in SETS]:
        parser.error(f"no such set: {', '.join(unknown)}; use any of {', '.join(SETS)}")
    if asked.list:
        for name, commands in SETS.items():
            say(name, *commands, sep="\n    ")
        return
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    done = run_all(iter(asked.sets), out, time.monotonic() + asked.limit, asked.gpus)
    sys.exit(not all(done))


if __name__ == "__main__":
    main()
