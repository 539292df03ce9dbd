"""Diagnoses before a start: `diagnose` for a machine, and `explain` for the ranges of a model.

Imports `tuning` and all below it; only `explain` needs torch.
"""
