import math

import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.n_heads, c // self.n_heads).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        if mask is not None:
            att = att.masked_fill(mask == 0, float("-inf"))
        y = torch.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class TinyGPT(nn.Module):
    def __init__(self, vocab_size=65, block_size=256, d_model=64, n_heads=4, **kwargs):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, d_model)
        self.pos = nn.Embedding(block_size, d_model)
        self.attn = SelfAttention(d_model, n_heads)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model, n_heads, 128, batch_first=True), num_layers=1
        )
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, idx, mask=None, return_dict=True):
        b, t = idx.shape
        x = self.tok(idx) + self.pos(torch.arange(t, device=idx.device))
        x = self.encoder(x + self.attn(x, mask))
        logits = self.head(x)
        return {"logits": logits} if return_dict else logits


model = TinyGPT()
