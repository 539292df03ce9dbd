"""Measuring candidates: checked against a reference, timed on a device, and the winner selected.

Imports `core` and torch, but not inductor.
"""
