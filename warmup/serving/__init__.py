"""A table in use: `install`, `check`, `prime`, `run`, what a table did so far, and bundles.

Imports `tuning` and all below it. A server calls `install`; `bench` starts servers to compare them.
"""
