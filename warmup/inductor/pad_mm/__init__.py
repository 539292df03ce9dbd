"""The row kind `pad`: whether inductor pads the operands of an unaligned product.

Imports `core`, `keys` and `warmup.inductor`. `warmup.inductor.adapter` puts its hooks in place.
"""
