"""The verb `build`: compiles a model's buckets, measures each question, writes winners to a table.

Imports `diagnostics` and all below it. `warmup build` and `bench mm` call `build.build`; a server
with `on_miss="tune"` uses the tuner.
"""
