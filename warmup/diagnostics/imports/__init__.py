"""Readers of what other tools tuned: logs and caches of inductor, lookup tables, vLLM's configs.

All files are read without trust: as text and JSON, with limits, and never as code.
"""
