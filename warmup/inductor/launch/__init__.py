"""The row kind `launch`: the launch config of a generated Triton kernel.

Imports `core`, `keys` and `warmup.inductor`. `warmup.inductor.adapter` puts its hooks in place.
"""
