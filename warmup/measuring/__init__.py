"""Measuring candidates: checked against a reference, timed on a device, and the winner selected.

Imports `core` and torch, but not inductor. `tuning` calls it (on a GPU in a child process), `bench`
uses its clock and device peaks, and `cli` counts rejections with it.
"""
