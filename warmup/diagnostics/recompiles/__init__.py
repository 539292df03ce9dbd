"""The verb `explain`: at which sizes torch.compile makes another artifact, and why.

Imports what `diagnostics` imports, and torch. `warmup explain` calls `explain.explain`.
"""
