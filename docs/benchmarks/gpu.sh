#!/usr/bin/env bash
# Everything measured on a GPU machine: tests, tables, starts, audits. Results go to the folder $1.
#   docs/benchmarks/gpu.sh OUT tests|builds-llama|builds-swiglu|bad|compare-llama|compare-swiglu|bench-mm|bench-layers
#   docs/benchmarks/gpu.sh OUT build-products|compare-products CLASS [SHAPES]
#   docs/benchmarks/gpu.sh OUT decode [SHAPES]
#   docs/benchmarks/gpu.sh OUT unaligned CLASS|exhaustive [DIMS]|spilling
#   docs/benchmarks/gpu.sh OUT ship llama|qwen|swiglu|mlp|vision-linear|products [SECONDS [SEQLENS]]
#   docs/benchmarks/gpu.sh OUT ranges llama|swiglu [--force]
#   docs/benchmarks/gpu.sh OUT shapes llama|swiglu [SECONDS until all are ready]
#   docs/benchmarks/gpu.sh OUT eight-bits RowWise|TensorWise|Int8 [default|wide]
#   docs/benchmarks/gpu.sh OUT host llama|swiglu [SECONDS until all are ready]
#   docs/benchmarks/gpu.sh OUT zoo SECONDS [ARGUMENTS of zoo.py]
#   docs/benchmarks/gpu.sh OUT launch|few-rows [SECONDS]
#   docs/benchmarks/gpu.sh OUT replay
#   docs/benchmarks/gpu.sh OUT explain|fusion [PARTS of vit_mlp.py]
#   docs/benchmarks/gpu.sh OUT pads [SECONDS [NAMES]]
#   docs/benchmarks/gpu.sh OUT devices [SECONDS]
#   docs/benchmarks/gpu.sh OUT vllm-pieces FOLDER of vllm_cut.py [SECONDS]
#   docs/benchmarks/gpu.sh OUT occupancy TABLE
#   docs/benchmarks/gpu.sh OUT growth [SECONDS [ARGUMENTS of growth.py]]
#   docs/benchmarks/gpu.sh OUT predicted|predicted-exhaustive|predicted-few-rows [SECONDS [TABLE [SHARE]]]
#   docs/benchmarks/gpu.sh OUT pads-collected [SECONDS [SEED [DTYPES]]]
#   docs/benchmarks/gpu.sh OUT predicted-build [SECONDS [ARGUMENTS of predicted_build.py]]
#   docs/benchmarks/gpu.sh OUT llama|swiglu|swiglu-cold|small|bundle|parallel
# Several of them on the GPUs of one host, in a limited time: queue.sh beside this.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

# The first GPU's name as in a table's path, such as nvidia-h100-80gb-hbm3, and its second word, h100.
device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr '[:upper:]' '[:lower:]')
device=$(sed 's/[^a-z0-9.]\+/-/g; s/-$//' <<< "$device")
tables=tables/$device gpu=$(cut -d- -f2 <<< "$device")

five="--seqlens 16,256,560,1024,2048"

audit() { # NAME: what the logs of the table starts say
  python3 -m warmup audit "$out/$1-audit.jsonl" --fail-on miss,uncovered,silent > "$out/$1-audit.txt" || echo "audit: $?"
  head -6 "$out/$1-audit.txt"
}

case $2 in
tests) # one GPU; tests/gpu/test_two_gpus.py wants two
  python3 -m pytest -q --durations=5 tests/gpu 2>&1 | tail -30
  ;;
builds-llama | builds-swiglu) # a shipped table twice, and what differs
  build() { # NAME MODEL
    for run in a b; do
      python3 -m warmup build --model "$2" --seqlens 16,256,560,1024,2048 \
        --out "$out/$1-$run.json" --timings "$out/$1-$run.jsonl" 2>&1 | tail -4
    done
    python3 docs/benchmarks/timings.py twice "$out/two-builds-$1-$gpu.json" \
      "$out/$1-a.json" "$out/$1-a.jsonl" "$out/$1-b.json" "$out/$1-b.jsonl"
  }
  case $2 in
  builds-llama) build llama examples/llama_block.py:LlamaBlocks ;;
  builds-swiglu) build swiglu examples/vision_block.py:SwiGLU ;;
  esac
  ;;
bad) # candidates that misbehave are offered to a build
  python3 tests/programs/build_with_bad.py tests/programs/models/plain_linear.py:PlainLinear 560 \
    "$out/bad-table.json" "$out/bad-candidates.json" 15
  ;;
compare-llama)
  python3 -m warmup compare --model examples/llama_block.py:LlamaBlocks --seqlens 16,560,2048 \
    --table $tables/llama-blocks.bf16.json --rounds 30 --out "$out"
  ;;
build-products | compare-products) # layers of Llama-3-8B with one epilogue: Plain, BiasGelu, SiluMul or Residual
  sizes=()
  for shape in ${4:-6144x4096 4096x4096 14336x4096 4096x14336}; do # NxK
    sizes+=(--dims "n=${shape%x*};k=${shape#*x};m=16,64,256,560,1024,2048")
  done
  case $2 in
  build-products) # all four classes write to one table, at once if there are four GPUs
    python3 -m warmup build --model "examples/products.py:$3" "${sizes[@]}" --search wide \
      --out $tables/products.bf16.json --timings "$out/products-$3.jsonl" 2>&1 | tail -4
    cp $tables/products.bf16.json "$out/"
    ;;
  compare-products)
    python3 -m warmup compare --model "examples/products.py:$3" "${sizes[@]}" \
      --table $tables/products.bf16.json --rounds 12 --launch cudagraph --l2 cold --no-charts --out "$out/$3"
    ;;
  esac
  ;;
decode) # products with few rows: reading alone, a table from all GPUs of the host, each product served from it
  python3 docs/benchmarks/decode.py problems "$out/few.json"
  python3 docs/benchmarks/decode.py ceiling "$out/read.json"
  python3 -m warmup build --problems "$out/few.json" --devices all --out "$out/few-table.json" \
    --timings "$out/few.jsonl" 2>&1 | tail -5
  sizes=()
  for shape in ${3:-4096x4096 6144x4096 28672x4096 4096x14336 3584x18944 1280x1280 50257x768 152064x3584}; do
    sizes+=(--dims "n=${shape%x*};k=${shape#*x};m=1,8,32")
  done
  python3 -m warmup compare --model examples/products.py:Plain "${sizes[@]}" --table "$out/few-table.json" \
    --rounds 15 --launch cudagraph --l2 cold --no-charts --out "$out/decode"
  python3 docs/benchmarks/decode.py results "$out/decode-$gpu.json" --timings "$out/few.jsonl" \
    --ceiling "$out/read.json" --compared "$out/decode/compare.json"
  ;;
unaligned) # one layer of a real model, its weights padded where that pays: Gpt2Head and others
  case $3 in
  Gpt2Head) x="x=[seqlen,768]:bf16" sizes=16,1024 ;;
  WhisperHead) x="x=[seqlen,1280]:bf16" sizes=16,256 ;;
  VitPatch) x="x=[seqlen,588]:bf16" sizes=1024 ;;
  esac
  python3 -m warmup build --model "examples/unaligned.py:$3" --input "$x" --seqlens $sizes \
    --out "$out/unaligned.json" 2>&1 | tail -4
  python3 -m warmup compare --model "examples/unaligned.py:$3" --input "$x" --seqlens $sizes \
    --table "$out/unaligned.json" --rounds 20 --launch cudagraph --no-charts --out "$out/$3"
  ;;
pads) # pad decisions by compiled regions: one layer served both ways, then what flips in shipped tables; with NAMES
  # only the shipped tables of these names.
  [ -n "${4:-}" ] || python3 docs/benchmarks/pad_decisions.py model examples/mlp.py:VisionLinear 560,1024,2048 \
    "$out/pads-vision" 2> "$out/pads-vision.err" | tee "$out/pads-vision.txt"
  python3 docs/benchmarks/pad_decisions.py shipped "$out/pads-shipped" "${3:-900}" ${4:-} \
    2> "$out/pads-shipped.err" | tee "$out/pads-shipped.txt"
  ;;
devices) # the same matmuls on one GPU and on all of this host
  python3 docs/benchmarks/devices.py "$out" --seconds "${3:-560}"
  ;;
vllm-pieces) # the pieces that vLLM compiles: tuned online, built in the program, and from that table
  python3 docs/benchmarks/vllm_pieces.py measure --pieces "$3" --sizes 8 --most 0 --limit "${4:-480}" \
    --out "$out/vllm-pieces-$gpu.json"
  ;;
ship) # a shipped table, completed as far as SECONDS last; its rows go on from there next time.
  # With SEQLENS a share of it, into the folder alone: for several GPUs at once, to be merged.
  powers=1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192
  usual=16,64,256,560,1024,2048
  case $3 in
  llama) name=llama-blocks.bf16 words=(--model examples/llama_block.py:LlamaBlocks --seqlens "560,$powers") ;;
  qwen)
    name=llama-block.qwen.bf16
    words=(--model examples/llama_block.py:qwen --input "hidden_states=[1,seqlen,3584]:bf16" --seqlens "$powers")
    ;;
  swiglu) name=vision-block.swiglu.bf16 words=(--model examples/vision_block.py:SwiGLU --seqlens "$usual") ;;
  mlp) name=mlp.bf16 words=(--model examples/mlp.py:MLP --dtype bf16 --seqlens "$usual") ;;
  vision-linear)
    name=mlp.visionlinear.bf16
    words=(--model examples/mlp.py:VisionLinear --input "hidden_states=[seqlen,3420]:bf16" --seqlens "$usual")
    ;;
  products)
    name=product.f16 words=(--model warmup.bench.matmul.product:Product --dtype f16)
    for shape in 128x9216x4096 128x4096x4096 128x4096x1000 2048x768x768 2048x768x3072 \
      2048x3072x768 1024x768x768 1024x768x3072 1024x3072x768 1024x768x2304; do
      IFS=x read -r m k n <<< "$shape"
      words+=(--dims "m=$m;k=$k;n=$n")
    done
    ;;
  esac
  table=$tables/$name.json
  if [ -n "${5:-}" ]; then
    table=$out/$name.${5%%,*}.json words+=(--seqlens "$5")
  fi
  timeout "${4:-540}" python3 -m warmup build "${words[@]}" --search wide --out "$table" \
    --timings "$out/${table##*/}l" 2>&1 | tail -12 || echo "stopped: $?"
  [ "$table" -ef "$out/${table##*/}" ] || cp "$table" "$out/"
  ;;
zoo) # models of transformers and timm, as many as SECONDS last; the next call goes on.
  # The goals are for CUDA graphs, so winners are chosen for them. ship_zoo.py takes over what is done.
  python3 docs/benchmarks/zoo.py --out "$out" --limit "$3" --launch cudagraph "${@:4}"
  ;;
launch) # generated kernels: default mode, max-autotune with coordinate descent, and the searched table
  python3 tests/programs/launch_race.py "$out/launch-race.json" "${3:-240}" | tee "$out/launch-race.txt"
  ;;
replay) # what the host takes to replay a CUDA graph that is recorded in several ways
  python3 docs/benchmarks/replay.py "$out/replay-$gpu.json"
  ;;
explain) # the sizes at which torch.compile makes another artifact of the layer of the first question
  python3 -m warmup explain --model examples/mlp.py:VisionLinear --seqlens 560,1024,2048 \
    --input "hidden_states=[seqlen,3420]:bf16" --largest 8192 | tee "$out/explain.txt"
  ;;
ranges | shapes | host) # a table of ranges; a mix of sizes served from it; what the host limits there
  case $3 in
  llama) model=examples/llama_block.py:LlamaBlocks name=llama-blocks ;;
  swiglu) model=examples/vision_block.py:SwiGLU name=vision-block.swiglu ;;
  esac
  table=$tables/$name.ranges.bf16.json
  case $2 in
  ranges)
    python3 -m warmup build --model $model --seqlens 16,256,560,1024,2048 --policy range --search wide ${4:-} \
      --out "$table" --timings "$out/${table##*/}l" 2>&1 | tail -40
    cp "$table" "$out/"
    ;;
  shapes)
    python3 docs/benchmarks/mix.py --model $model --buckets 16,256,560,1024,2048 \
      --table "$table" --pad-table "${table/.ranges/}" --distinct 6 \
      --ways eager,range,pad,pad-graphs,dynamic-smallest,dynamic-largest,static \
      --limit "${4:-86400}" --results "$out/shapes-$3-$gpu.json"
    ;;
  host) # a table for each launch, that of the results or built here, and the mix; without the ways that tune for minutes
    for launch in eager cudagraph; do
      known=docs/benchmarks/results/host-$3-$gpu-$launch-table.json words=(--launch $launch)
      [ $launch = cudagraph ] || words+=(--policy range)
      if [ -e "$known" ]; then
        cp "$known" "$out/$name.$launch.json"
      else
        python3 -m warmup build --model $model $five "${words[@]}" \
          --out "$out/$name.$launch.json" 2>&1 | tee "$out/$name.$launch.txt" | tail -30
      fi
    done
    python3 docs/benchmarks/mix.py --model $model --buckets 16,256,560,1024,2048 \
      --table "$out/$name.eager.json" --pad-table "$out/$name.cudagraph.json" --distinct 6 \
      --ways eager,range,pad,pad-graphs,dynamic-largest --limit "${4:-86400}" \
      --results "$out/host-$3-$gpu.json"
    ;;
  esac
  ;;
growth) # starts and builds by layers and buckets, as many as SECONDS last; the next call goes on.
  # The shipped table is completed for the buckets that it lacks, in the folder.
  [ -e "$out/growth-table.json" ] || cp $tables/llama-blocks.bf16.json "$out/growth-table.json"
  python3 docs/benchmarks/growth.py --width full --limit "${3:-560}" --resume \
    --table "$out/growth-table.json" --results "$out/growth-$gpu.json" ${4:-}
  ;;
occupancy) # the kernels that TABLE serves products with few rows with, under Nsight Compute
  python3 docs/benchmarks/occupancy.py "$out/occupancy-$gpu.json" --table "$3"
  ;;
fusion) # the MLP of a ViT: what is fused into its products, with which tiles, and what that gains
  for part in ${3:-Gelu Relu Block}; do
    python3 -m warmup build --model "docs/benchmarks/vit_mlp.py:$part" --seqlens 1370 \
      --out "$out/vit-$part.json" --timings "$out/vit-$part.jsonl" 2>&1 | tail -6
    python3 -m warmup show "$out/vit-$part.json" --candidates addmm
    python3 -m warmup compare --model "docs/benchmarks/vit_mlp.py:$part" --seqlens 1370 \
      --table "$out/vit-$part.json" --rounds 20 --launch cudagraph --l2 cold --no-charts --out "$out/vit-$part"
  done
  ;;
few-rows) # kernels for few rows, outside of inductor, against the library: what a template could reach
  python3 docs/benchmarks/few_rows.py --out "$out/few-rows-$gpu.json" --limit "${3:-300}"
  ;;
spilling) # tiles that spill, sampled, for two products with many rows
  for shape in 768x768 6144x4096; do # NxK
    python3 docs/benchmarks/spilling.py "${shape%x*}" "${shape#*x}" 2048 "$out/spilling.json" \
      "$out/spilling-$shape.jsonl"
  done
  python3 docs/benchmarks/timings.py searches "$out/spilling.json" "$out/searches-spilling-$gpu.json" \
    sampled="$out/spilling-768x768.jsonl" sampled="$out/spilling-6144x4096.jsonl"
  ;;
predicted | predicted-exhaustive | predicted-few-rows) # times of GEMMs for a device model, from all GPUs: in the wide
  # search all of the list, in the exhaustive search the first forty, or the first forty with at most 16 rows, which have a
  # fifth of the candidates; without those in the committed timings. Goes on from TABLE, if given.
  # SHARE, such as 2/4, is for one of four GPUs that work at once.
  search=wide which=() known=docs/benchmarks/results/timings/$gpu-predicted.jsonl.gz
  if [ "$2" != predicted ]; then
    search=exhaustive which=(--first 40) known=docs/benchmarks/results/timings/$gpu-exhaustive.jsonl.gz
  fi
  [ "$2" != predicted-few-rows ] || which+=(--rows 16)
  [ ! -e "$known" ] || which+=(--without "$known")
  python3 docs/benchmarks/predicted_problems.py "$out/$2-problems.json" "${which[@]}" --share "${5:-1/1}"
  [ -z "${4:-}" ] || cp "$4" "$out/$2.json"
  timeout -s INT "${3:-560}" python3 -m warmup build --problems "$out/$2-problems.json" --out "$out/$2.json" \
    --devices all --search $search --fused-top-k 0 --timings "$out/$2.jsonl" 2>&1 | tail -5 || echo "stopped: $?"
  ;;
predicted-build) # GEMMs of held-out models built in the predicted, the default and the wide search, on one GPU
  python3 docs/benchmarks/predicted_build.py docs/benchmarks/results/timings/$gpu-predicted.jsonl.gz \
    "$out/predicted-build" --limit "${3:-560}" "${@:4}"
  ;;
pads-collected) # samples for a model of pad decisions, as many as SECONDS last, after those of this GPU that ship.
  # Another SEED draws other samples; DTYPES, such as f32, draws of these alone.
  known=docs/benchmarks/results/timings/$gpu-pads.jsonl.gz
  [ ! -e "$known" ] || gzip -dc "$known" > "$out/pad.jsonl"
  python3 -m warmup pad collect --samples 800 --seed "${4:-1}" --dtypes "${5:-f16,bf16,f32}" \
    --budget "$((${3:-540} - 30))s" --devices all --out "$out/pad.jsonl" > "$out/pad.txt" 2>&1 || echo "stopped: $?"
  tail -5 "$out/pad.txt"
  ;;
exhaustive) # one product in every search
  for search in default wide exhaustive; do
    python3 -m warmup build --model examples/products.py:Plain --dims "${3:-n=6144;k=4096;m=16}" \
      --search $search --out "$out/searched.json" --timings "$out/searched-$search.jsonl" 2>&1 | tail -3
  done
  ;;
compare-swiglu) # the unaligned MLP, as it is and with its weights padded ahead of time
  python3 -m warmup compare --model examples/vision_block.py:SwiGLU --seqlens 16,64,560,2048 \
    --table $tables/vision-block.swiglu.bf16.json --rounds 30 --launch cudagraph --out "$out"
  ;;
eight-bits) # a Llama-3-8B layer in fp8 or int8: built, served strictly, and compared with torch
  sizes=16,512,2048
  [ "$3" != Int8 ] || sizes=32,512,2048 # torch._int_mm takes more than 16 rows
  python3 -m warmup build --model "examples/eight_bits.py:$3" --seqlens $sizes --search "${4:-default}" \
    --launch cudagraph --out "$out/eight-bits.$3.json" --timings "$out/eight-bits.$3.jsonl" 2>&1 | tail -12
  python3 -m warmup review "$out/eight-bits.$3.json" > "$out/eight-bits.$3-review.txt" || true # 1: to look at
  python3 -m warmup compare --model "examples/eight_bits.py:$3" --seqlens $sizes \
    --table "$out/eight-bits.$3.json" --rounds 20 --launch cudagraph --l2 cold --no-charts --out "$out/$3"
  ;;
bench-mm)
  python3 -m warmup bench mm --out "$out"
  ;;
bench-layers)
  python3 -m warmup bench layers --out "$out"
  ;;
llama) # the starts that the shipped table replaces; how fast it serves, compare-llama measures
  export WARMUP_AUDIT_LOG=$out/llama-audit.jsonl
  python3 docs/benchmarks/starts.py --model examples/llama_block.py:LlamaBlocks $five --repeats 2 \
    --starts default,table,table-warm,table-max-autotune,max-autotune,mega-cache \
    --once table-warm,table-max-autotune,max-autotune,mega-cache \
    --table $tables/llama-blocks.bf16.json --results "$out/llama-$gpu.json"
  audit llama
  ;;
bundle) # a start with the winners' compiled kernels, and with the graphs, against torch's own artifacts
  python3 docs/benchmarks/starts.py --model examples/llama_block.py:LlamaBlocks $five --repeats 2 \
    --starts default,table,bundle,bundle-graphs,max-autotune,mega-cache --once default,table,max-autotune \
    --table $tables/llama-blocks.bf16.json --results "$out/bundle-$gpu.json"
  ;;
parallel) # buckets one after the other, and together
  python3 docs/benchmarks/starts.py --together --model examples/llama_block.py:LlamaBlocks $five \
    --table $tables/llama-blocks.bf16.json --results "$out/parallel-$gpu.json"
  python3 docs/benchmarks/starts.py --together --model examples/vision_block.py:SwiGLU $five \
    --table $tables/vision-block.swiglu.bf16.json --results "$out/parallel-swiglu-$gpu.json"
  ;;
swiglu) # the unaligned MLP: a build, and starts from its table
  export WARMUP_AUDIT_LOG=$out/swiglu-audit.jsonl
  python3 docs/benchmarks/starts.py --build --model examples/vision_block.py:SwiGLU $five \
    --starts default,table,table-warm --once table-warm \
    --table "$out/swiglu-table.json" --results "$out/swiglu-$gpu.json"
  audit swiglu
  ;;
swiglu-cold) # what the same starts cost without a table
  python3 docs/benchmarks/starts.py --model examples/vision_block.py:SwiGLU $five --repeats 1 \
    --starts default,max-autotune,mega-cache --results "$out/swiglu-cold-$gpu.json"
  ;;
small) # the two small models: built, and compared
  compare() { # NAME ARGUMENTS
    python3 -m warmup build --model "examples/mlp.py:$1" "${@:2}" --out "$out/$1-table.json" 2>&1 | tail -4
    python3 -m warmup compare --model "examples/mlp.py:$1" "${@:2}" --table "$out/$1-table.json" \
      --launch cudagraph --no-charts --out "$out/$1"
  }
  compare MLP --dtype bf16 $five
  compare VisionLinear --input "hidden_states=[seqlen,3420]:bf16" --seqlens 560,1024,2048
  ;;
esac
