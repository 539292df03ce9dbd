"""The row kind `gemm`: answers inductor's GEMM selections from rows, or asks for measurements.

Imports `core`, `keys` and `warmup.inductor`. `warmup.inductor.adapter` attaches its hooks, the
child process of `tuning` makes calls and regions with it, and `pad_mm` uses its layouts.
"""
