"""Qwen2.5's decoder with random weights, for builds: needs transformers.

    warmup build --model docs/benchmarks/qwen2.py:Qwen --seqlens 16,512 --dtype bf16

The widths are those of Qwen2.5-7B, with 4 of its 28 layers; QWEN_HIDDEN=896 in the environment has
those of Qwen2.5-0.5B, and QWEN_LAYERS another number of layers. The output is the logits of the
last token.
"""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

# Hidden size -> intermediate size, attention heads, key-value heads, vocabulary.
WIDTHS: Final = {3584: (18944, 28, 4, 152064), 896: (4864, 14, 2, 151936)}


class Qwen(nn.Module):
    """Token ids (batch, seqlen) to the logits of the last token (batch, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        hidden = int(os.environ.get("QWEN_HIDDEN", "3584"))
        intermediate, heads, key_value_heads, vocabulary = WIDTHS[hidden]
        config = Qwen2Config(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            num_hidden_layers=int(os.environ.get("QWEN_LAYERS", "4")),
            vocab_size=vocabulary,
            attn_implementation="sdpa",
            use_cache=False,
        )
        torch.manual_seed(0)
        self.decoder = Qwen2ForCausalLM(config)

    def forward(self, ids: torch.Tensor) -> Any:
        """Return the logits of the last token."""
        return self.decoder(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return token ids for one sequence; `Qwen` has a larger vocabulary than 150000."""
    return torch.randint(0, 150_000, (1, seqlen))
