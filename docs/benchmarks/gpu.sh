#!/usr/bin/env bash
# Everything measured on a GPU machine: tests, tables, starts, audits. Results go to the folder $1.
#   docs/benchmarks/gpu.sh OUT llama|cold|swiglu|small
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
mkdir -p "$out"

audit() { # NAME: what the logs of the table starts say
  python3 -m warmup audit "$out/$1-audit.jsonl" --fail-on miss,uncovered,silent > "$out/$1-audit.txt" || echo "audit: $?"
  head -6 "$out/$1-audit.txt"
}

case $2 in
llama)
  export WARMUP_AUDIT_LOG=$out/llama-audit.jsonl
  python3 docs/benchmarks/run.py --name llama-h200 --model examples/llama_block.py:LlamaBlocks \
    --seqlens 16,256,560,1024,2048 --steady --repeats 2 \
    --starts default,table,table-warm,table-max-autotune --once table-warm,table-max-autotune \
    --table "$out/llama-table.json" --results "$out"
  audit llama
  ;;
cold) # the starts that a table replaces; apart, because they take minutes
  python3 docs/benchmarks/run.py --name llama-cold-h200 --no-build --repeats 1 --steady \
    --model examples/llama_block.py:LlamaBlocks --seqlens 16,256,560,1024,2048 \
    --starts default,max-autotune,mega-cache --results "$out"
  ;;
swiglu) # the unaligned MLP: pad rows
  export WARMUP_AUDIT_LOG=$out/swiglu-audit.jsonl
  python3 docs/benchmarks/run.py --name swiglu-h200 --model examples/vision_block.py:SwiGLU \
    --seqlens 16,256,560,1024,2048 --steady --repeats 2 \
    --starts default,table,table-warm,table-max-autotune,max-autotune,mega-cache \
    --once table-warm,table-max-autotune,max-autotune,mega-cache \
    --table "$out/swiglu-table.json" --results "$out"
  audit swiglu
  ;;
small)
  python3 -m pytest -q tests/gpu 2>&1 | tail -5
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
