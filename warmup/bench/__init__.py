"""Comparisons that users ask for: whole models, plain products and layers, with charts.

Imports `diagnostics` and all below it. `warmup compare`, `bench` and `profile` call it.
"""
