"""The row kinds `reduction` and `split`: how a reduction's kernels are made.

Persistent or looped, and in how many parts. Imports `core`, `keys`, `warmup.inductor` and its
folders `gemm` and `launch`. `warmup.inductor.adapter` attaches the hooks.
"""
