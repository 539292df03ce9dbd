"""The verb `bench layers`: norms, softmax, cross-entropy and SwiGLU against kernel libraries.

Imports what `bench` imports, and each library when its column is asked for. `run` is the way in.
"""
