"""Fixtures: small models with unaligned sizes, and a table that pads them."""

from padding_models import gated, head, pad_all, speaker, spoken, weighed

__all__ = ["gated", "head", "pad_all", "speaker", "spoken", "weighed"]
