"""The row kind `pad`: answers or measures whether inductor pads the operands of an unaligned GEMM.

Imports `core`, `keys` and `warmup.inductor`. `warmup.inductor.adapter` attaches its hooks.
"""
