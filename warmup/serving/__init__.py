"""Serving from a table: `install`, `check`, `prime`, `run`, `audit`, their reports, and bundles.

Imports `models` and all below it, and never `tuning`. A server calls `install`.
"""
