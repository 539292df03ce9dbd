"""Findings about many tables: `warmup doctor --tables`.

Rows of versions that nobody serves, devices that lack rows which others have, and rows whose
kernels take another time where they serve. No torch is imported.
"""
