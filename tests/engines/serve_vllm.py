"""A program that generates a few tokens with vLLM's engine, and prints what it compiled.

python serve_vllm.py MODEL COMPILE_SIZES
"""

from __future__ import annotations

import json
import os
import sys
import time


def _main() -> None:
    from vllm import LLM, SamplingParams

    started = time.monotonic()
    model = LLM(
        model=sys.argv[1],
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=64 << 20,
        seed=0,
        compilation_config={"compile_sizes": json.loads(sys.argv[2])},
    )
    seconds = time.monotonic() - started
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [1, 5, 9, 20]}, {"prompt_token_ids": [1, 7]}]
    tokens = [list(each.outputs[0].token_ids) for each in model.generate(prompts, sampling)]
    said = {"tokens": tokens, "seconds": round(seconds, 1)}
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        from torch._dynamo.utils import counters
        from vllm.compilation.counter import compilation_counter

        said["benchmarks"] = (
            sum(count for name, count in counters["inductor"].items() if "benchmark" in name)
            + counters["inductor"]["select_algorithm_autotune"]
        )
        said["compiled"] = compilation_counter.num_compiled_artifacts_saved
        said["loaded"] = compilation_counter.num_compiled_artifacts_loaded
    sys.stdout.write(f"SAID {json.dumps(said)}\n")


if __name__ == "__main__":
    _main()
