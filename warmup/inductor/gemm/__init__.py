"""The row kind `gemm`: inductor's GEMM selections, answered from rows or put as questions.

Imports `core`, `keys` and `warmup.inductor`. `warmup.inductor.adapter` puts its hooks in place.
"""
