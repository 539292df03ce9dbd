"""The verb `bench mm`: a table's kernels against torch, Triton and inductor on plain products.

Imports what `bench` imports. `run` is the way in.
"""
