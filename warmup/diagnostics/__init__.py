"""What happened, and what is wrong: audits, logs, misses, metrics, `diagnose` and `explain`.

Imports `models` and all below it; only `recompiles` needs torch. `serving` and
the commands call it.
"""
