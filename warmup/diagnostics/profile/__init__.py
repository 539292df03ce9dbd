"""Traces of torch's profiler, joined with the rows of a table.

Reading a trace and joining it needs no torch; `warmup.serving.record_trace` makes traces.
"""
