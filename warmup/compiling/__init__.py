"""`warmup.compile`: one artifact for each bucket of a model's dynamic sizes. Floor 2."""
