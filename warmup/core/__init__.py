"""What every folder shares: rows, trials, events, errors, runtimes and atomic file writes.

Imports the standard library only; every other folder imports it.
"""
