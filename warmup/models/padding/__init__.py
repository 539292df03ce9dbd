"""Weights padded ahead of time: which Linears can be padded, how far a table pads them, padding.

Imports what `models` imports. `install(model=...)` and `prepare` pad; `tuning` measures whether
padding pays.
"""
