"""Times of GEMM candidates that nobody measured, predicted from those that builds measured.

Imports `core` and `keys`; only `fitting` and `network` import torch. `cli` and `tuning` call it to
fit and to search, `serving` to answer misses.
"""
