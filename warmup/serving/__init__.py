"""Serving from a table: `install`, `check`, `prime`, `run`, their reports, and bundles.

Imports `tuning` and all below it. A server calls `install`; `bench` starts servers to compare them.
"""
