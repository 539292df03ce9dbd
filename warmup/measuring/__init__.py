"""Candidates checked against a reference and timed on a device, and the choice among them.

Imports `core`, `keys` and torch, and nothing of inductor. `tuning` calls it, in a child process on
a GPU; `bench` times with the same clock.
"""
