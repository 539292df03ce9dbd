"""The row kind `reduction`: answers or measures whether a reduction is persistent or looped.

Imports `core`, `keys`, `warmup.inductor` and its folder `launch`. `warmup.inductor.adapter`
attaches its hooks.
"""
