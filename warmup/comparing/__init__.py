"""`warmup compare`: one model started and served in several ways, and which is faster. Floor 2."""
