"""The verb `compile`: one artifact for each bucket of a model's dynamic sizes.

Imports what `serving` imports. `compile.compile` makes a `model.CompiledModel`.
"""
