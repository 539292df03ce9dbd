"""`warmup bench mm`: a table's kernels against torch, Triton and inductor on plain matmuls.

Imports what `bench` imports. The entry point is `run.bench_mm`.
"""
