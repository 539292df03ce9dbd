"""Fixtures: small models with unaligned sizes, and a table that pads them."""

from padding_models import gated, head, language_model, model_inputs, weighed

__all__ = ["gated", "head", "language_model", "model_inputs", "weighed"]
