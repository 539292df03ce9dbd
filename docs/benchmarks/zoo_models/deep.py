"""Models of the zoo with all their layers, for starts that compile equal layers once."""

from __future__ import annotations

import decoders
import encoders
from torch import nn


def bert_large() -> nn.Module:
    """BERT-large: 24 equal layers."""
    return encoders.bert_large(layers=24)


def modernbert() -> nn.Module:
    """ModernBERT-base: 22 layers, every third of them with global attention."""
    return encoders.modernbert(layers=22)


def t5() -> nn.Module:
    """The encoder of T5 v1.1 large: 24 layers, the first of which has the table of positions."""
    return encoders.t5(layers=24)


def qwen2() -> nn.Module:
    """Qwen2.5-7B: 28 equal layers, and a head for the last token."""
    return decoders.qwen2(layers=28)
