"""Traces of torch's profiler, joined with the rows of a table.

`trace` reads a file, `attribution` says what is behind a kernel, `profile` adds up and compares.
torch is imported where a trace has shapes whose operations its counter knows, and nowhere else.
"""
