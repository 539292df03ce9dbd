"""Words that every folder shares: rows, events, errors, trials, and files put in place whole.

Imports the standard library alone. Every other folder imports it.
"""
