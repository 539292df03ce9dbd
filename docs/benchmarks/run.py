"""Measure again what the benchmark page quotes: one name for each set of results.

    python docs/benchmarks/run.py --list
    python docs/benchmarks/run.py starts-llama zoo --out results

Each set is one command or several, printed before they run, with the repository as the current
folder. A set that fails does not end the others; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from driver import ROOT, python_path, say

from warmup.cli.streams import EXIT_UNDECIDED

FIVE = "--seqlens 16,256,560,1024,2048"
H200 = "tables/nvidia-h200"
LLAMA, SWIGLU = "examples/llama_block.py:LlamaBlocks", "examples/vision_block.py:SwiGLU"
HERE = "docs/benchmarks"


def starts_of(name: str, model: str, words: str) -> tuple[str]:
    """Return the command for all starts of *model*; {out} is the folder of the results."""
    return (f"python {HERE}/starts.py --out {{out}} --name {name} --model '{model}' {words}",)


_DIMS = "--dims seqlen=16,256,560,1024,2048"
_ALL = f"{_DIMS} --once max-autotune,max-autotune-warm,mega-cache --starts "
_WARM = "max-autotune-warm,mega-cache,default-warm,table-warm,bundle-graphs"
_LAYERS = "default-layers,table-layers,bundle-graphs-layers"
_DEEP = f"{_DIMS} --layers layers --once default --starts default,{_LAYERS}"
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
    "wav2vec2": ("started.py:wav2vec2", "--dims batch=1 --input input_values=[batch,160000]:bf16"),
}

# {out} is the folder of the results.
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
    "zoo": (f"python {HERE}/zoo.py --out {{out}}/zoo",),
    "bench-mm": ("python -m warmup bench mm --out {out}/bench-mm",),
    "bench-layers": ("python -m warmup bench layers --out {out}/bench-layers",),
}


def run_set(name: str, out: Path) -> bool:
    """Run the commands of the set *name* until one fails; return whether none did."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    for command in SETS[name]:
        words = shlex.split(command.replace("{out}", str(out)))
        words[0] = sys.executable
        say(f"{name}:", shlex.join(words))
        code = subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode
        if code not in (0, EXIT_UNDECIDED):  # a table whose every row is unstable is a table
            say(f"{name}: failed")
            return False
    return True


def main() -> None:
    """Run the sets that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--out", type=Path, default=Path("results"))
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
    done = [run_set(name, out) for name in asked.sets]
    sys.exit(not all(done))


if __name__ == "__main__":
    main()
