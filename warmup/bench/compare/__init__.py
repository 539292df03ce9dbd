"""`warmup compare`: a model started and timed in several variants, and the speed-up of each.

`compare.compare` runs the comparison, with a process for each variant, and returns a `Comparison`.
The folder may import what `bench` may.
"""
