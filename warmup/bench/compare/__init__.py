"""The verb `compare`: one model started and served in several variants, and which is faster.

Imports what `bench` imports. `compare.compare` starts a process for each variant.
"""
