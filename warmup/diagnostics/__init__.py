"""Diagnoses: `audit` of event logs, misses and metrics, `diagnose` for a machine, and `explain`.

Imports `models` and all below it; only `explain` needs torch. `serving` and commands call it.
"""
