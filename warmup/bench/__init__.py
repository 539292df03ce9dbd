"""Comparisons that users ask for: whole models, plain products and layers, with charts.

Imports `serving` and all below it. `warmup compare` and `warmup bench` call it.
"""
