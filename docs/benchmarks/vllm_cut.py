"""Writes the pieces that vLLM's backend cuts a model into, as modules that need no vLLM.

    python docs/benchmarks/vllm_cut.py --out FOLDER [--layers 4] [--config '{"hidden_size": 256}']

It runs where vLLM is installed, on a CPU: the engine starts with random weights in the widths of
Llama-3-8B, compiles as on a GPU (the plugin of tests/engines), and is ended when its graph is cut.
FOLDER has `pieces.py`, a class for each different piece in the form that FX writes, and
`pieces.json`: the order of the pieces, and the shape and dtype of each input. A dimension written
as "tokens" is the number of tokens of a call. `vllm_pieces.py` compiles them.

vLLM replaces its two norms by torch's operations before inductor has the graph. Here they are
functions of the same arithmetic, which dynamo traces into.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

GPULIKE = Path(__file__).resolve().parents[2] / "tests" / "engines" / "gpulike"
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    # Of 128256: the embedding is only read, and a smaller one fits into less memory.
    "vocab_size": 16032,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENS = "tokens"
_HEADER = """
import torch
from torch import device


def add_rms_norm(x, residual, weight, epsilon, _):
    x, dtype = x.float() + residual.float(), x.dtype
    return norm(x, weight, epsilon).to(dtype), x.to(dtype)


def rms_norm(x, weight, epsilon, _):
    return norm(x.float(), weight, epsilon).to(x.dtype)


def norm(x, weight, epsilon):
    scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (x * scale).to(weight.dtype) * weight
"""
_CLASS = """

class {name}(torch.nn.Module):
{code}
"""
# Annotations name classes of vLLM; weights are inputs, and need no look behind autograd.
_REPLACED = (
    (r"(input_\d+) : [\w.]+", r"\1"),
    (r"torch\._C\._autograd\._get_data_attr\((\w+)\)", r"\1"),
    (r"torch\.ops\.vllm_ir\.rms_norm\.default", "rms_norm"),
    (r"torch\.ops\.vllm_ir\.fused_add_rms_norm\.maybe_inplace", "add_rms_norm"),
)


class CutError(Exception):
    """The graph is cut: the engine need not go on."""


def _shape(value: Any) -> dict[str, Any]:
    import torch

    if not isinstance(value, torch.Tensor):
        return {"tokens": True}
    sizes = [size if isinstance(size, int) else TOKENS for size in value.shape]
    contiguous = value.is_contiguous()
    assert contiguous, f"an input of shape {sizes} is not contiguous"
    return {"shape": sizes, "dtype": str(value.dtype).removeprefix("torch.")}


def write_pieces(items: list[Any], split: Any, folder: Path, on: str) -> None:
    """Write the pieces of *items* that are compiled, submodules of *split*, for the device *on*."""
    classes: dict[str, str] = {}
    order, inputs = [], {}
    source = [_HEADER.lstrip()]
    for item in items:
        if item.is_splitting_graph:
            continue
        module = getattr(split, item.submod_name)
        holders = [node for node in module.graph.nodes if node.op == "placeholder"]
        shapes = [_shape(node.meta["example_value"]) for node in holders]
        # Names of inputs have the number of their layer.
        for number, node in enumerate(holders):
            node.name = node.target = f"input_{number}"
        code = module.graph.python_code("self").src.replace("'cpu'", f"'{on}'")
        for pattern, replacement in _REPLACED:
            code = re.sub(pattern, replacement, code)
        assert "vllm" not in code, f"a piece has an operation of vLLM's own:\n{code}"
        if code not in classes:
            classes[code] = name = f"Piece{len(classes)}"
            body = "\n".join(f"    {line}" for line in code.strip().splitlines())
            source.append(_CLASS.format(name=name, code=body))
            inputs[name] = shapes
        order.append(classes[code])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pieces.py").write_text("".join(source))
    document = {"device": on, "order": order, "inputs": inputs}
    (folder / "pieces.json").write_text(json.dumps(document, indent=1))


def main() -> None:
    """Start the engine, and write the pieces of its graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--config", type=json.loads, default={}, help="other values of the config")
    parser.add_argument("--device", default="cuda", help="where the pieces will run")
    asked = parser.parse_args()
    os.environ |= {
        "GPULIKE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": "gpulike",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    sys.path.insert(0, str(GPULIKE))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VLLM_CACHE_ROOT"] = folder
        model = Path(folder) / "model"
        model.mkdir()
        config = {**LLAMA_3_8B, "num_hidden_layers": asked.layers, **asked.config}
        (model / "config.json").write_text(json.dumps(config))
        from vllm import LLM
        from vllm.compilation import backends

        cut = backends.split_graph

        def cut_and_write(*args: Any) -> Any:
            split, items = cut(*args)
            write_pieces(items, split, asked.out, asked.device)
            raise CutError

        backends.split_graph = cut_and_write
        try:
            LLM(
                model=str(model),
                skip_tokenizer_init=True,
                load_format="dummy",
                max_model_len=8192,
                max_num_seqs=64,
                max_num_batched_tokens=8192,
                kv_cache_memory_bytes=256 << 20,
                enforce_eager=False,
            )
        except Exception:  # whatever the engine makes of the error that ended it
            if not (asked.out / "pieces.json").exists():
                raise
    pieces = json.loads((asked.out / "pieces.json").read_text())
    print(f"{asked.out}: pieces {' '.join(pieces['order'])}")  # noqa: T201


if __name__ == "__main__":
    main()
