"""The row kind `launch`: answers or measures the launch configs of generated Triton kernels.

Imports `core`, `keys` and `warmup.inductor`. `warmup.inductor.adapter` attaches its hooks.
"""
