#!/usr/bin/env bash
# Everything measured on a GPU machine: tests, tables, starts, audits. Results go to the folder $1.
#   docs/benchmarks/gpu.sh OUT tests|build-llama|llama|swiglu|swiglu-cold|small
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
mkdir -p "$out"

audit() { # NAME: what the logs of the table starts say
  python3 -m warmup audit "$out/$1-audit.jsonl" --fail-on miss,uncovered,silent > "$out/$1-audit.txt" || echo "audit: $?"
  head -6 "$out/$1-audit.txt"
}

case $2 in
tests) # one GPU; tests/gpu/test_two_gpus.py wants two
  python3 -m pytest -q --durations=5 tests/gpu 2>&1 | tail -30
  ;;
build-llama)
  python3 -m warmup build --model examples/llama_block.py:LlamaBlocks \
    --seqlens 16,256,560,1024,2048 --out "$out/llama-table.json"
  ;;
llama) # the starts that the shipped table replaces, in one run
  export WARMUP_AUDIT_LOG=$out/llama-audit.jsonl
  python3 docs/benchmarks/run.py --name llama-h200 --model examples/llama_block.py:LlamaBlocks \
    --seqlens 16,256,560,1024,2048 --steady --repeats 2 \
    --starts default,table,table-warm,table-max-autotune,max-autotune,mega-cache \
    --once table-warm,table-max-autotune,max-autotune,mega-cache \
    --no-build --build-record docs/benchmarks/results/llama-h200.json \
    --table tables/nvidia-h200/llama-blocks.bf16.json --results "$out"
  audit llama
  ;;
swiglu) # the unaligned MLP: pad rows
  export WARMUP_AUDIT_LOG=$out/swiglu-audit.jsonl
  python3 docs/benchmarks/run.py --name swiglu-h200 --model examples/vision_block.py:SwiGLU \
    --seqlens 16,256,560,1024,2048 --steady --repeats 3 \
    --starts default,table,table-warm --once table-warm \
    --table "$out/swiglu-table.json" --results "$out"
  audit swiglu
  ;;
swiglu-cold) # what the same starts cost without a table
  python3 docs/benchmarks/run.py --name swiglu-cold-h200 --model examples/vision_block.py:SwiGLU \
    --seqlens 16,256,560,1024,2048 --steady --repeats 1 --no-build \
    --starts default,max-autotune,mega-cache --results "$out"
  ;;
small)
  export WARMUP_AUDIT_LOG=$out/mlp-audit.jsonl
  python3 docs/benchmarks/run.py --name mlp-h200 --model examples/mlp.py:MLP --dtype bf16 \
    --seqlens 16,256,560,1024,2048 --steady --repeats 2 \
    --starts default,table,max-autotune --once max-autotune \
    --table "$out/mlp-table.json" --results "$out"
  audit mlp
  unset WARMUP_AUDIT_LOG
  python3 docs/benchmarks/run.py --name vision-linear-h200 --model examples/mlp.py:VisionLinear \
    --input "hidden_states=[seqlen,3420]:bf16" --seqlens 560,1024,2048 --steady --repeats 1 \
    --starts default,table,max-autotune --table "$out/vision-linear-table.json" --results "$out"
  ;;
esac
