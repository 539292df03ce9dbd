"""`explain`: at which sizes torch.compile makes another artifact of a model, and why.

Imports what `diagnostics` imports, and torch. The command `warmup explain` calls it.
"""
