"""`warmup bench layers`: norms, softmax, cross-entropy and SwiGLU against kernel libraries.

Imports what `bench` imports, and a library when its backend is used. The entry point is
`run.bench_layers`.
"""
