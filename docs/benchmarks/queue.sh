#!/usr/bin/env bash
# Runs many of gpu.sh's measurements in a limited time, one at a time on each GPU of this host.
#   docs/benchmarks/queue.sh JOBS SECONDS OUT
# JOBS has lines "NAME LEAST COMMAND", in order of worth; `$O` in a command is its folder OUT/NAME, and
# `$LEFT` the seconds left. A free GPU takes the first job that needs no more than is LEFT at LEAST.
# Each has an equal share of the cores. A job that is not done in time is ended; the rest is named.
set -euo pipefail
jobs=$1 deadline=$((SECONDS + $2)) out=$3
mkdir -p "$out"
gpus=$(nvidia-smi --list-gpus | wc -l)
cores=$(($(nproc) / gpus))
# By core, so that two threads of one core work for the same GPU.
mapfile -t cpus < <(
  lscpu --parse=CPU,SOCKET,CORE | grep -v '^#' | sort -t, -k2n -k3n -k1n | cut -d, -f1
)
left=$out/left.txt
grep -v '^ *\(#\|$\)' "$jobs" > "$left"

take() { # prints the first job that fits into $1 seconds, and takes it from the list
  (
    flock 9
    awk -v left="$1" -v rest="$left.new" \
      '!taken && $2 <= left { print; taken = 1; next } { print > rest }' "$left"
    touch "$left.new"
    mv "$left.new" "$left"
  ) 9> "$out/.lock"
}

work() { # GPU
  export CUDA_VISIBLE_DEVICES=$1 TMPDIR=$out/tmp-$1
  mkdir -p "$TMPDIR"
  while LEFT=$((deadline - SECONDS)) && job=$(take "$LEFT") && [ -n "$job" ]; do
    read -r name _ command <<< "$job"
    O=$out/$name
    export LEFT O
    mkdir -p "$O"
    begun=$SECONDS code=0
    taskset -c "$(IFS=, && echo "${cpus[*]:$1 * cores:cores}")" \
      timeout -k 5 "$LEFT" bash -c "$command" > "$O/log" 2>&1 || code=$?
    echo "GPU $1, $name: $((SECONDS - begun)) s, code $code"
    tail -n 2 "$O/log" | cut -c1-120
  done
  rm -rf "$TMPDIR"
}

for gpu in $(seq 0 $((gpus - 1))); do work "$gpu" & done
wait
echo "not begun:"
cut -d' ' -f1 "$left"
