"""The row kind `pad`: answers or measures whether inductor pads the operands of an unaligned GEMM.

Imports `core`, `keys`, `warmup.inductor` and its `gemm`. `warmup.inductor.adapter` attaches its
hooks.
"""
