"""Whether to pad an unaligned GEMM that nobody measured, from samples that `pad collect` measured.

Imports `core`, `keys` and `prediction`; nothing here needs torch. `cli` and `tuning` call it to
draw samples and to fit, `warmup.prediction.predictions` to answer misses.
"""
