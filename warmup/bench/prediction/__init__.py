"""How good predicted times are on models that were left out of the fit: a record and its charts.

Imports `prediction` and the charts. `warmup fit` calls it.
"""
