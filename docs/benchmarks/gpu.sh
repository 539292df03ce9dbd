#!/usr/bin/env bash
# Everything measured on a GPU machine, in one go: tests, tables, starts. Results go to $1.
#   docs/benchmarks/gpu.sh OUT [smoke]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
mkdir -p "$out"
if [ "${2:-}" = smoke ]; then
  python3 docs/benchmarks/run.py --name llama-smoke --model examples/llama_block.py:LlamaBlocks \
    --seqlens 16,560 --starts default,table --repeats 1 --steady \
    --table "$out/llama-smoke-table.json" --results "$out"
  python3 -m warmup show "$out/llama-smoke-table.json"
  exit
fi
python3 -m pytest -q tests/gpu 2>&1 | tail -5
python3 docs/benchmarks/run.py --name mlp-h200 --model examples/mlp.py:MLP --dtype bf16 \
  --seqlens 16,256,560,1024,2048 \
  --starts default,max-autotune,max-autotune-gemm,table --once max-autotune,max-autotune-gemm \
  --repeats 3 --steady --table "$out/mlp-table.json" --results "$out"
python3 docs/benchmarks/run.py --name vision-linear-h200 --model examples/mlp.py:VisionLinear \
  --input "hidden_states=[seqlen,3420]:bf16" --seqlens 560,1024,2048 --starts default,max-autotune,max-autotune-gemm,table --repeats 1 --steady \
  --table "$out/vision-linear-table.json" --results "$out"
python3 docs/benchmarks/run.py --name llama-h200 --model examples/llama_block.py:LlamaBlocks \
  --seqlens 16,256,560,1024,2048 \
  --starts default,table,max-autotune,max-autotune-gemm --once max-autotune,max-autotune-gemm \
  --repeats 3 --steady --table "$out/llama-table.json" --results "$out"
