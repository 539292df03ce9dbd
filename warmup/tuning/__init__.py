"""The verb `build`: a model's buckets compiled, each question measured, winners put into a table.

Imports `diagnostics` and all below it. `warmup build` and `bench mm` call `build.build`; a server
with `on_miss="tune"` uses the tuner.
"""
