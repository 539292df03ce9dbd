"""Weights padded ahead of time: which Linears can be, by how much a table says, and doing it.

Imports what `models` imports. `install(model=...)` and `prepare` pad; `tuning` measures whether
padding pays.
"""
